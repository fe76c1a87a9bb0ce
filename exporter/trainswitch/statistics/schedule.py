"""The learning rate as its schedule moves it: how far from one step to the next, and how long not at all."""

from __future__ import annotations

import math


class LearningRates:
    """Follows the learning rate of each parameter group, step by step.

    Nothing of it is part of a checkpoint: a run that is resumed or rolled back may go on with another rate,
    and that is no jump.
    """

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}
        self._unchanged = 0

    def begin_step(self) -> None:
        """Note that another step ended, whose learning rates follow."""
        self._unchanged += 1

    def take(self, group: int, rate: float) -> float | None:
        """Take the rate that a step used, and return its ratio to the one before; None where it is the same.

        A rate that comes from 0 or goes to it has no ratio, and one that is not known is left out (NaN: it is
        on a device).
        """
        if not math.isfinite(rate):
            return None
        before = self._rates.get(group)
        self._rates[group] = rate
        if before is None or rate == before:
            return None
        self._unchanged = 0
        return rate / before if rate > 0.0 and before > 0.0 else None

    @property
    def unchanged(self) -> int | None:
        """Steps since a group's rate last changed, or since the count began; None where no rate is known."""
        return self._unchanged if self._rates else None

    def begin_count(self) -> None:
        """Count unchanged steps anew: a phase of training has begun, whose limit may be another one."""
        self._unchanged = 0

    def forget(self) -> None:
        """Forget all rates: the run goes on from somewhere else."""
        self._rates.clear()
        self._unchanged = 0
