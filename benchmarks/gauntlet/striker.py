"""When a run's fault strikes: once, whatever is rolled back or started again meanwhile."""

from __future__ import annotations

from benchmarks.gauntlet.faults import Fault, Place
from benchmarks.gauntlet.recipes import Batch, Training
from benchmarks.gauntlet.spec import Diary


class Striker:
    """Lets the fault of a run happen, once."""

    def __init__(self, fault: Fault | None, at: int, training: Training, diary: Diary) -> None:
        """Prepare.

        Args:
            fault: of the run; None for none.
            at: step at which it strikes.
            training: what it strikes.
            diary: tells whether it has, in an earlier process.
        """
        self._fault = fault if fault is not None and fault.rank == training.rank else None
        self._at = at
        self._training = training
        self._diary = diary
        struck = bool(diary.events("fault"))
        self._due = self._fault is not None and (self._fault.persists or not struck)
        self._left = 0
        if self._fault is not None and self._fault.place == "data":
            training.batches.spoil = self._read

    def _read(self, position: int, batch: Batch) -> Batch:
        assert self._fault is not None
        if not self._at - 1 <= position < self._at - 1 + self._fault.length:
            return batch
        self._note(position + 1)
        return self._fault.read(position, batch)

    def at(self, place: Place, step: int) -> None:
        """Let it strike if this is where and when."""
        fault = self._fault
        if fault is None or fault.place != place or step < self._at:
            return
        if self._due and self._left == 0:
            self._left = fault.length
            self._note(step)
        if not self._left:
            return
        if self._due or fault.persists:
            fault.strike(self._training)
        self._due = False
        self._left -= 1
        if not self._left:
            fault.relieve(self._training)

    def _note(self, step: int) -> None:
        if not self._diary.events("fault"):
            self._diary.note("fault", step=step)
