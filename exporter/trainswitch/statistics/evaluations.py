"""Evaluations: a metric's newest values against those before them, for Welch's t-test, and the best."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Direction = Literal["higher", "lower"]
"""Which values of a metric are the better ones."""

MOST_METRICS = 256
"""Metrics beyond so many are refused: their names come from the loop, and each becomes a dozen series."""

_LOWER_IS_BETTER = re.compile(
    r"loss|error|perplexity|divergence|(?<![a-z])(ppl|err|nll|bpb|bpc|mse|rmse|mae|mape|wer|cer|eer|fid)(?![a-z])"
)


@dataclasses.dataclass(frozen=True)
class Moments:
    """What Welch's t-test needs of a sample."""

    mean: float
    """NaN of no values."""
    variance: float
    """With n - 1 degrees of freedom; NaN of fewer than two values."""
    count: int


def moments(values: Iterable[float]) -> Moments:
    """Return mean, variance and count of finite values; exact until the last rounding."""
    sample = list(values)
    if not sample:
        return Moments(math.nan, math.nan, 0)
    mean = statistics.mean(sample)
    try:
        variance = statistics.variance(sample) if len(sample) > 1 else math.nan
    except OverflowError:
        variance = math.inf
    return Moments(mean, variance, len(sample))


def default_direction(metric: str) -> Direction:
    """Return ``lower`` for names that say loss, error, perplexity or a usual shorthand, else ``higher``."""
    return "lower" if _LOWER_IS_BETTER.search(metric.lower()) else "higher"


class Evaluations:
    """The last evaluations of each metric: a recent window, and the reference window that lies before it.

    The reference does not overlap the recent window, so the two are the independent samples of Welch's test.
    Both slide: a metric that has settled at a worse level is its own reference after a while; what it once
    was stays known as the best.
    """

    def __init__(self, recent: int, reference: int, directions: Mapping[str, Direction]) -> None:
        """Begin without evaluations.

        Args:
            recent: evaluations in the recent window, at least 2.
            reference: evaluations in the reference window, at least 2.
            directions: metric → its better direction, where `default_direction` is not right.
        """
        self._recent = recent
        self._directions = dict(directions)
        self._size = recent + reference
        self._values: dict[str, deque[float]] = {}
        self._best: dict[str, float] = {}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics that were ever evaluated."""
        return tuple(self._values)

    def update(self, metric: str, value: float) -> None:
        """Take an evaluation; a value that is not finite makes the metric known and is otherwise left out.

        Raises:
            ValueError: there are `MOST_METRICS` other metrics already.
        """
        if metric not in self._values:
            if len(self._values) >= MOST_METRICS:
                raise ValueError(
                    f"evaluation metric {metric!r} is one more than {MOST_METRICS}: "
                    "use fewer names, without step numbers or paths in them"
                )
            self._values[metric] = deque(maxlen=self._size)
        if not math.isfinite(value):
            return
        self._values[metric].append(value)
        better = max if self.direction(metric) == "higher" else min
        self._best[metric] = better(value, self._best.get(metric, value))

    def direction(self, metric: str) -> Direction:
        """Return which values of `metric` are the better ones."""
        return self._directions.get(metric) or default_direction(metric)

    def windows(self, metric: str) -> dict[str, Moments]:
        """Return the moments of the ``recent`` and the ``reference`` window of a metric."""
        values = list(self._values[metric])
        return {"recent": moments(values[-self._recent :]), "reference": moments(values[: -self._recent])}

    def best(self, metric: str) -> float:
        """Return the best finite value of a metric; NaN where there was none."""
        return self._best.get(metric, math.nan)

    def clear(self) -> None:
        """Forget all values; the names stay known."""
        for values in self._values.values():
            values.clear()
        self._best.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the values in both windows and the best, per metric."""
        return {
            metric: {"values": list(values), "best": self._best.get(metric)}
            for metric, values in self._values.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._values = {
            metric: deque(map(float, kept["values"]), maxlen=self._size) for metric, kept in state.items()
        }
        self._best = {
            metric: float(kept["best"]) for metric, kept in state.items() if kept["best"] is not None
        }
