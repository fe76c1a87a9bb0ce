"""Evaluations of a run: a metric's newest values against those before them and against its best one."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
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


def evaluation_noise(values: Sequence[float]) -> float:
    """Return the standard deviation of values that scatter about a slowly moving mean.

    Half the mean square of successive differences estimates the variance, and a trend hardly adds to it:
    J. von Neumann et al., The mean square successive difference, Annals of Mathematical Statistics 12 (1941).
    NaN of fewer than three values.
    """
    if len(values) < 3:
        return math.nan
    differences = [later - earlier for earlier, later in pairwise(values)]
    return math.hypot(*differences) / math.sqrt(2 * len(differences))


def default_direction(metric: str) -> Direction:
    """Return ``lower`` for names that say loss, error, perplexity or a usual shorthand, else ``higher``."""
    return "lower" if _LOWER_IS_BETTER.search(metric.lower()) else "higher"


class _History:
    """What is kept of one metric."""

    def __init__(self, size: int) -> None:
        self.values: deque[float] = deque(maxlen=size)
        self.training_losses: deque[float] = deque(maxlen=size)
        """The training loss at each of `values`; NaN where there was none."""
        self.best: float | None = None


class Evaluations:
    """The last evaluations of each metric: a recent window, and the reference window that lies before it.

    The reference does not overlap the recent window, so the two are the independent samples of Welch's test.
    Both slide: a metric that has settled at a worse level is its own reference after a while; what it once
    was stays known as the best.

    Each evaluation is kept with the training loss that led to it, the mean of the steps since the evaluation
    before: that tells overfitting, where the two part, from a run that gets worse as a whole.
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
        self._histories: dict[str, _History] = {}
        self._loss = _MeanBetween()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics that were ever evaluated."""
        return tuple(self._histories)

    def take_loss(self, loss: float) -> None:
        """Take a step's finite training loss."""
        self._loss.take(loss)

    def update(self, metric: str, value: float) -> None:
        """Take an evaluation; a value that is not finite makes the metric known and is otherwise left out.

        Raises:
            ValueError: there are `MOST_METRICS` other metrics already.
        """
        history = self._histories.get(metric)
        if history is None:
            if len(self._histories) >= MOST_METRICS:
                raise ValueError(
                    f"evaluation metric {metric!r} is one more than {MOST_METRICS}: "
                    "use fewer names, without step numbers or paths in them"
                )
            history = self._histories[metric] = _History(self._size)
        training_loss = self._loss.read()
        if not math.isfinite(value):
            return
        better = max if self.direction(metric) == "higher" else min
        history.best = value if history.best is None else better(value, history.best)
        history.values.append(value)
        history.training_losses.append(training_loss)

    def direction(self, metric: str) -> Direction:
        """Return which values of `metric` are the better ones."""
        return self._directions.get(metric) or default_direction(metric)

    def windows(self, metric: str) -> dict[str, Moments]:
        """Return the moments of the ``recent`` and the ``reference`` window of a metric."""
        return {name: moments(values) for name, values in self._split(self._histories[metric].values).items()}

    def training_losses(self, metric: str) -> dict[str, float]:
        """Return the mean training loss at the evaluations of both windows; NaN where it is not known."""
        windows = self._split(self._histories[metric].training_losses)
        return {name: statistics.mean(values) if values else math.nan for name, values in windows.items()}

    def best(self, metric: str) -> float:
        """Return the best finite value of a metric; NaN where there was none."""
        best = self._histories[metric].best
        return math.nan if best is None else best

    def noise(self, metric: str) -> float:
        """Return the `evaluation_noise` of both windows together."""
        return evaluation_noise(self._histories[metric].values)

    def clear(self) -> None:
        """Forget all values; the names stay known."""
        self._histories = {metric: _History(self._size) for metric in self._histories}
        self._loss = _MeanBetween()

    def state_dict(self) -> dict[str, Any]:
        """Return the state: what both windows hold and the best, per metric."""
        return {
            metric: {
                "values": list(history.values),
                "training_losses": [_or_none(loss) for loss in history.training_losses],
                "best": history.best,
            }
            for metric, history in self._histories.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._histories = {}
        for metric, kept in state.items():
            history = self._histories[metric] = _History(self._size)
            history.values.extend(map(float, kept["values"]))
            history.training_losses.extend(map(_or_nan, kept["training_losses"]))
            history.best = None if kept["best"] is None else float(kept["best"])

    def _split(self, kept: Iterable[float]) -> dict[str, list[float]]:
        values = list(kept)
        return {"recent": values[-self._recent :], "reference": values[: -self._recent]}


class _MeanBetween:
    """Mean of what was taken since it was read last; a reading without new values repeats the one before.

    One evaluation reads it once for each of its metrics.
    """

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0
        self._mean = math.nan

    def take(self, value: float) -> None:
        self._sum += value
        self._count += 1

    def read(self) -> float:
        if self._count:
            self._mean = self._sum / self._count
            self._sum, self._count = 0.0, 0
        return self._mean


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows no NaN


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
