"""Excess: how far the newest values lie above what was usual just before, for one step and for most of five.

A single step that stands out is chance or a bad document; one that is followed by others of its kind is
trouble. "Three of five steps lie beyond k" is the same as "the third largest of the last five lies beyond k",
for every k. So the exporter works out that value, and the limit stays in the rule.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

EXCESS_STEPS = (1, 3)
"""How many of the last `OF_STEPS` steps reach an excess: the newest itself, and most of them."""
OF_STEPS = 5
WINDOW_STEPS = 32
"""A longer window is slower to forget the descent of a young run, in whose spread trouble hides; a shorter
one estimates the spread badly. Of 24, 32, 40, 48 and 100, this one judged public training logs best."""
FLOOR = 3e-3
"""Sigma is never taken to be less than this share of the median: six of them are then 2 % of the loss."""
LEAST_START = 0.01
"""A run whose first loss is smaller has no start to be compared with: its objective, as in reinforcement
learning, may well begin near zero."""

_FEWEST = 8
_TINY = 1e-300
_QUARTILES_SIGMAS = 1.349
_DECILES_SIGMAS = 2.563
_LARGEST_EXCESS = 1e300


class Lasting:
    """What most of the last `OF_STEPS` values reach."""

    def __init__(self) -> None:
        """Begin without values."""
        self._last: deque[float] = deque(maxlen=OF_STEPS)
        self.now: float | None = None
        """What they reach at present; None while there are not three."""

    def update(self, value: float) -> float | None:
        """Take the next value, and return `now`."""
        last = self._last
        last.append(value)
        if len(last) >= EXCESS_STEPS[-1]:
            self.now = sorted(last)[-EXCESS_STEPS[-1]]
        return self.now

    def interrupt(self) -> None:
        """Forget the last values: what comes next does not follow them, as after a rollback or a pause."""
        self._last.clear()
        self.now = None


class Level(NamedTuple):
    """Where the loss has been lately."""

    recent: float
    """Median of the window."""
    best: float
    """The lowest that it has been; NaN before a window was full."""
    sigma: float
    """Spread of the window."""


class LossExcess:
    """The excess of each loss over the median of the losses before it, in robust sigmas.

    Sigma is the larger of what the quartiles and what the outer deciles of the window would be of a normal
    distribution: losses have heavier tails than that, above all those of single batches. A window that is
    nearly constant has no deciles that differ (rewards of zero with an exception now and then): its range is
    taken.

    An excess is compared with the values before it only, so trouble begins to hide behind its own spread no
    earlier than three values later; and a new level is the usual one after half a window.
    """

    def __init__(self) -> None:
        """Begin without values."""
        self.lasting = Lasting()
        """Of the excesses; not in the state, since what a resumed run does first follows nothing."""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._values: deque[float] = deque()
        self._ordered: list[float] = []
        self._best = math.nan
        self.lasting.interrupt()

    def update(self, value: float) -> tuple[float, float | None] | None:
        """Take the next value; None where it is not finite, or there are too few to judge it by.

        Returns:
            The excess of the value itself, and what three of the last five reach, in the order of
            `EXCESS_STEPS`; the latter is None while there are not three.
        """
        if not math.isfinite(value):
            return None
        ordered = self._ordered
        excess = None
        if len(ordered) >= _FEWEST:
            sigmas = (value - ordered[len(ordered) // 2]) / _sigma(ordered)
            sigmas = min(max(sigmas, -_LARGEST_EXCESS), _LARGEST_EXCESS)
            excess = sigmas, self.lasting.update(sigmas)
        if len(self._values) == WINDOW_STEPS:
            del ordered[bisect.bisect_left(ordered, self._values.popleft())]
        self._values.append(value)
        bisect.insort(ordered, value)
        if len(ordered) == WINDOW_STEPS and not ordered[WINDOW_STEPS // 2] >= self._best:
            self._best = ordered[WINDOW_STEPS // 2]
        return excess

    def level(self) -> Level | None:
        """Return the recent and the best level; None while there are too few values."""
        if len(self._ordered) < _FEWEST:
            return None
        return Level(self._ordered[len(self._ordered) // 2], self._best, _sigma(self._ordered))

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the window, and its best median."""
        return {"values": list(self._values), "best": None if math.isnan(self._best) else self._best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._values = deque(list(map(float, state["values"]))[-WINDOW_STEPS:])
        self._ordered = sorted(self._values)
        self._best = math.nan if state["best"] is None else float(state["best"])


def _sigma(ordered: Sequence[float]) -> float:
    """Return the spread of sorted values, as a standard deviation."""
    n = len(ordered)
    deciles = ordered[9 * n // 10] / _DECILES_SIGMAS - ordered[n // 10] / _DECILES_SIGMAS
    quartiles = ordered[3 * n // 4] / _QUARTILES_SIGMAS - ordered[n // 4] / _QUARTILES_SIGMAS
    spread = max(quartiles, deciles) or ordered[-1] / _DECILES_SIGMAS - ordered[0] / _DECILES_SIGMAS
    return max(spread, FLOOR * abs(ordered[n // 2]), _TINY)


class LossRise:
    """The loss over what it was at the run's first step, as most of the last five steps reach it.

    A model that was not trained yet has the largest loss that a sane run will ever see, so this needs no
    warm-up. It says nothing where the first loss is below `LEAST_START`, or once a loss was not positive:
    such an objective has no zero to take ratios from.
    """

    def __init__(self) -> None:
        """Begin without a first loss."""
        self._first: float | None = None
        self._meaningful = True
        self.lasting = Lasting()
        """Of the ratios; not in the state, as that of the excesses."""

    def update(self, value: float) -> float | None:
        """Take the next finite value; return what three of the last five ratios reach, None if unknown."""
        if self._first is None:
            self._first = value
        if value <= 0.0 or self._first < LEAST_START:
            self._meaningful = False
        if not self._meaningful:
            self.lasting.interrupt()
            return None
        return self.lasting.update(min(value / self._first, _LARGEST_EXCESS))

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the first loss, and whether it can be compared with."""
        return {"first": self._first, "meaningful": self._meaningful}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._first = None if state["first"] is None else float(state["first"])
        self._meaningful = bool(state["meaningful"])
