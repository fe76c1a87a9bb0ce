"""Statistics of the last values of a series: gradient norms against their median, trend, frozen baseline."""

from __future__ import annotations

import bisect
import functools
import math
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FENCE_IQRS = 3.0
"""A log norm this many interquartile ranges beyond the upper quartile is winsorised to that fence."""
_NARROWEST_IQR = math.log(1.25)
_FEWEST_FOR_RATIO = 8
CLIMB_NORMS, CLIMB_REFERENCE_NORMS = 64, 256
"""A climb is told by the median of the newest norms over that of those before them."""
_ROUNDING = 1e-12
"""Residuals of values of about 1 that are only rounding errors."""


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return quantile `q` of sorted values, interpolating linearly (NumPy's default, Hyndman-Fan type 7)."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = math.ceil(position)
    if ordered[low] == ordered[high]:
        return ordered[low]
    weight = position - low
    return ordered[low] * (1.0 - weight) + ordered[high] * weight


class GradientWindow:
    """The last W gradient norms, in the log domain, and the ratio of each new one to their median.

    Norms beyond the upper fence enter the median winsorised, so that an explosion does not become its own
    reference within half a window; the quantiles that are exported are of the norms as they were.
    """

    def __init__(self, window: int) -> None:
        """Create an empty window of `window` norms."""
        self._raw: deque[float] = deque(maxlen=window)
        self._logs: deque[float] = deque()
        self._ordered: list[float] = []
        self._window = window

    def update(self, norm: float) -> float | None:
        """Take the next finite norm and return it over the trailing median; None while there are few."""
        if not (math.isfinite(norm) and norm >= 0.0):
            return None
        self._raw.append(norm)
        if norm == 0.0:  # says nothing about the size of those that are not, as where a reward had no spread
            return 0.0 if len(self._ordered) >= _FEWEST_FOR_RATIO else None
        log = math.log(norm)
        ratio = None
        if len(self._ordered) >= _FEWEST_FOR_RATIO:
            ratio = math.exp(min(log - quantile(self._ordered, 0.5), 700.0))
            low, high = quantile(self._ordered, 0.25), quantile(self._ordered, 0.75)
            log = min(log, high + FENCE_IQRS * max(high - low, _NARROWEST_IQR))
        if len(self._logs) == self._window:
            oldest = self._logs.popleft()
            del self._ordered[bisect.bisect_left(self._ordered, oldest)]
        self._logs.append(log)
        bisect.insort(self._ordered, log)
        return ratio

    def quantiles(self, probabilities: Sequence[float]) -> list[float]:
        """Return quantiles of the norms in the window; empty where there are none."""
        ordered = sorted(self._raw)
        return [quantile(ordered, q) for q in probabilities] if ordered else []

    def climb(self) -> float | None:
        """Return the median of the last `CLIMB_NORMS` norms over that of the `CLIMB_REFERENCE_NORMS` before.

        Two medians so far apart stand still under spikes, and see a rise too slow for a line over the newest.
        None while the window holds fewer, and where the median before is zero.
        """
        norms = list(self._raw)[-(CLIMB_NORMS + CLIMB_REFERENCE_NORMS) :]
        before = sorted(norms[:-CLIMB_NORMS])
        if len(before) < CLIMB_REFERENCE_NORMS or (reference := quantile(before, 0.5)) == 0.0:
            return None
        return quantile(sorted(norms[-CLIMB_NORMS:]), 0.5) / reference

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the norms as they were, and their logarithms as winsorised."""
        return {"norms": list(self._raw), "logs": list(self._logs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; of a longer window, the newest norms."""
        self._raw = deque(map(float, state["norms"]), maxlen=self._window)
        self._logs = deque(list(map(float, state["logs"]))[-self._window :])
        self._ordered = sorted(self._logs)


class Trend(NamedTuple):
    """A window's least-squares line and order statistics."""

    slope: float
    """Per step."""
    slope_stderr: float
    minimum: float
    median: float
    maximum: float


class TrendWindow:
    """The last W finite values of a series; the statistics are worked out when they are asked for.

    Running sums would have to be kept each step, for a line that is looked at once a scrape; and sums from
    which old values are subtracted drift: a single loss of 1e30 would leave its rounding error, of 1e14, in
    them for good. Two exact passes over W values at a scrape cost a fraction of a millisecond.
    """

    def __init__(self, window: int) -> None:
        """Create an empty window of `window` values."""
        self._values: deque[float] = deque(maxlen=window)

    def update(self, value: float) -> None:
        """Take the next value; non-finite ones are left out."""
        if math.isfinite(value):
            self._values.append(value)

    def trend(self) -> Trend | None:
        """Return the statistics, or None for fewer than three values.

        Slope and its standard error are those of ordinary least squares on the position in the window, with
        n - 2 degrees of freedom.
        """
        n = len(self._values)
        if n < 3:  # a standard error takes one more point than a line
            return None
        values = list(self._values)
        ordered = sorted(values)
        size = max(abs(ordered[0]), abs(ordered[-1])) or 1.0  # scaled, so that squares cannot overflow
        slope, residuals = _line([value / size for value in values])
        spread = n * (n * n - 1) / 12.0
        stderr = math.sqrt(math.fsum(map(operator.mul, residuals, residuals)) / (n - 2) / spread)
        return Trend(slope * size, stderr * size, ordered[0], quantile(ordered, 0.5), ordered[-1])

    def autocorrelation(self, steps: int) -> float | None:
        """Return the autocorrelation at lag 1 of the last `steps` values' deviations from their line.

        It is about 0 ± 1 / sqrt(steps) for independent noise, and near -1 for values that jump up and down
        from one to the next. None for fewer values, and for those on a line.
        """
        if len(self._values) < steps:
            return None
        values = list(self._values)[-steps:]
        size = max(map(abs, values)) or 1.0
        _, residuals = _line([value / size for value in values])
        variance = math.fsum(map(operator.mul, residuals, residuals))
        if variance < steps * _ROUNDING**2:
            return None
        return math.fsum(map(operator.mul, residuals, residuals[1:])) / variance

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the values in the window."""
        return {"values": list(self._values)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; of a longer window, the newest values."""
        self._values = deque(map(float, state["values"]), maxlen=self._values.maxlen)


def _line(values: Sequence[float]) -> tuple[float, list[float]]:
    """Return the slope of the least-squares line through values by their position, and their residuals."""
    n = len(values)
    positions = _centered(n)
    mean = math.fsum(values) / n
    deviations = [value - mean for value in values]
    slope = math.fsum(map(operator.mul, positions, deviations)) / (n * (n * n - 1) / 12.0)
    return slope, [y - slope * x for x, y in zip(positions, deviations, strict=True)]


@functools.lru_cache(maxsize=16)
def _centered(n: int) -> tuple[float, ...]:
    """Return n positions about zero."""
    return tuple(i - (n - 1) / 2.0 for i in range(n))


class Baseline:
    """Median and interquartile range of signals over the warm-up, frozen when it ends (a robust scaler)."""

    def __init__(self, warmup_steps: int, most_values: int = 4096) -> None:
        """Create a baseline of `warmup_steps` steps that keeps at most `most_values` of each signal."""
        self._left = warmup_steps
        self._most = most_values
        self._values: dict[str, deque[float]] = {}
        self._frozen: dict[str, tuple[float, float]] = {}

    @property
    def ready(self) -> bool:
        """Whether the warm-up is over."""
        return self._left <= 0

    def update(self, **signals: float | None) -> bool:
        """Take one step's signals, and return whether the warm-up ended with it."""
        if self.ready:
            return False
        for name, value in signals.items():
            if value is not None and math.isfinite(value):
                self._values.setdefault(name, deque(maxlen=self._most)).append(value)
        self._left -= 1
        if self._left > 0:
            return False
        for name, values in self._values.items():
            ordered = sorted(values)
            iqr = quantile(ordered, 0.75) - quantile(ordered, 0.25)
            self._frozen[name] = (quantile(ordered, 0.5), iqr)
        self._values.clear()
        return True

    @property
    def frozen(self) -> dict[str, tuple[float, float]]:
        """Signal → (median, interquartile range); empty until the warm-up is over."""
        return dict(self._frozen)

    def state_dict(self) -> dict[str, Any]:
        """Return the state: steps left, values so far, and what is frozen."""
        return {
            "left": self._left,
            "values": {name: list(values) for name, values in self._values.items()},
            "frozen": {name: list(pair) for name, pair in self._frozen.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned: a warm-up that was over stays over."""
        self._left = int(state["left"])
        self._values = {
            name: deque(map(float, values), maxlen=self._most) for name, values in state["values"].items()
        }
        self._frozen = {name: (float(median), float(iqr)) for name, (median, iqr) in state["frozen"].items()}
