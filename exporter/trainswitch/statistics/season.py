"""Season: the loss's own centre in each phase of a period, such as an epoch."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

MOST_PHASES = 256
"""A longer season is divided into so many phases of several steps each. Its end falls between two of them; a
sharp edge elsewhere may fall inside one, and then part of that phase's steps deviate in every season."""
SEASONS_REMEMBERED = 5
"""A phase's centre is the median over so many seasons: a bad one among them does not become the norm."""


class Season:
    """A bounded table of the centre of a series in each phase of a season.

    In each season a phase contributes the mean of its finite values; the phase's centre is the lower median
    of its last `SEASONS_REMEMBERED` contributions, so that of two seasons the calmer one counts. Nothing is
    known before each phase has been through one season.
    """

    def __init__(self, length: int) -> None:
        """Begin with an empty table for a season of `length` steps."""
        self._length = length
        self._phases = min(length, MOST_PHASES)
        self._past: list[deque[float]] = [deque(maxlen=SEASONS_REMEMBERED) for _ in range(self._phases)]
        self._centers = [math.nan] * self._phases
        self._mean = math.nan
        self._phase = -1
        self._sum = 0.0
        self._count = 0

    @property
    def ready(self) -> bool:
        """Whether all phases have a centre."""
        return not math.isnan(self._mean)

    def offset(self, step: int) -> float:
        """Return how far the centre of the phase of `step` lies above the season's mean; 0 until ready."""
        return self._centers[self._phase_of(step)] - self._mean if self.ready else 0.0

    def update(self, step: int, value: float) -> bool:
        """Take the finite value of a step, and return whether the season became ready with it."""
        phase = self._phase_of(step)
        was_ready = self.ready
        if phase != self._phase:
            self._close()
            self._phase = phase
        self._sum += value
        self._count += 1
        return self.ready and not was_ready

    def _phase_of(self, step: int) -> int:
        return step % self._length * self._phases // self._length

    def _close(self) -> None:
        """Enter the phase that is over into the table."""
        if self._count:
            mean = self._sum / self._count
            if math.isfinite(mean):
                past = self._past[self._phase]
                past.append(mean)
                self._centers[self._phase] = statistics.median_low(past)
                season = sum(self._centers) / self._phases
                self._mean = season if math.isfinite(season) else math.nan
        self._sum = 0.0
        self._count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the season's length, whether it is ready, and each phase's past means."""
        return {"length": self._length, "ready": self.ready, "past": [list(past) for past in self._past]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; the table of a season of another length says nothing."""
        if state["length"] != self._length:
            return
        self._past = [deque(map(float, past), maxlen=SEASONS_REMEMBERED) for past in state["past"]]
        self._centers = [statistics.median_low(past) if past else math.nan for past in self._past]
        self._mean = sum(self._centers) / self._phases
        self._phase = -1
        self._sum = 0.0
        self._count = 0
