"""Statistics of the last values of a series: gradient norms against their median, trend, frozen baseline."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

FENCE_IQRS = 3.0
"""A log norm this many interquartile ranges beyond the upper quartile is winsorised to that fence."""
_NARROWEST_IQR = math.log(1.25)
_SMALLEST_NORM = 1e-30
_FEWEST_FOR_RATIO = 8


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
        log = math.log(max(norm, _SMALLEST_NORM))
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

    That is once a scrape, so two exact passes over W values cost less than running sums would each step,
    and they do not drift.
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
        scaled = [value / size for value in values]
        mean = math.fsum(scaled) / n
        middle = (n - 1) / 2.0
        spread = n * (n * n - 1) / 12.0
        slope = math.fsum((i - middle) * (y - mean) for i, y in enumerate(scaled)) / spread
        residual = math.fsum((y - mean - slope * (i - middle)) ** 2 for i, y in enumerate(scaled))
        stderr = math.sqrt(residual / (n - 2) / spread)
        return Trend(slope * size, stderr * size, ordered[0], quantile(ordered, 0.5), ordered[-1])


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
