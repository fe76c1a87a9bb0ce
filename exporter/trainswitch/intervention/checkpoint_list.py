"""Which checkpoints a run has, of what kind, which of them rotation keeps, and which a rollback takes.

In memory only: a change of kind or pin is noted in `CheckpointList.unrecorded` for whoever keeps the files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import count
from pathlib import Path
from typing import Protocol

from trainswitch.intervention.checkpoint_files import Kind, folder_name
from trainswitch.intervention.control_file import CheckpointEntry

_STABLE_KEPT = 2
"""The one that a rollback takes, and the one for when the same trouble returns."""


class Unborn(Protocol):
    """A checkpoint that is being written: its kind may change before it is there."""

    step: int
    kind: Kind


@dataclasses.dataclass(kw_only=True)
class CheckpointList:
    """The checkpoints of one run, the newest last. Not for several threads: its owner has a lock.

    *Newest* is by time of saving, because steps repeat after a rollback.
    """

    keep: int
    """How many of the newest rotation keeps."""
    probation_steps: int
    """Steps without trouble after which a checkpoint is stable."""
    max_pinned: int
    """How many can be pinned at a time."""
    now: int | None = None
    """Step that the run has come to; None before its first."""
    unborn: Unborn | None = None
    """The one that is being written."""
    unrecorded: set[str] = dataclasses.field(default_factory=set)
    """Paths of those whose manifest does not say yet what their entry says."""
    due: int | None = None
    """Step at which the next probation ends; until then `advance` has nothing to do."""
    _entries: list[CheckpointEntry] = dataclasses.field(default_factory=list)
    _proven: set[str] = dataclasses.field(default_factory=set)
    """Paths of those that were stable before the run went back to one of them, or was started."""

    def __iter__(self) -> Iterator[CheckpointEntry]:
        return iter(tuple(self._entries))

    # ── which there are ───────────────────────────────────────────────────────────────────────────────

    def find(self, entries: Iterable[CheckpointEntry]) -> None:
        """Take in what earlier sessions left."""
        self._entries = sorted(entries, key=lambda entry: entry.created_at)
        self._prove()
        self._plan_promotion()

    def place(self, folder: Path, step: int) -> Path:
        """Return the folder for a new checkpoint of `step`: that of an older one of the step, or a new one.

        A stable or pinned checkpoint is not replaced: the step is then kept twice.
        """
        held = {entry.path: entry for entry in self._entries}
        for number in count(1):
            path = folder / folder_name(step, number)
            entry = held.get(str(path))
            if entry is None or not (entry.kind == "stable" or entry.pinned):
                return path
        raise AssertionError

    def after(self, moment: float) -> float:
        """Return a time of saving for a new checkpoint: `moment`, or later if the clock was set back."""
        return max(moment, self._entries[-1].created_at + 1e-3 if self._entries else 0.0)

    def add(self, entry: CheckpointEntry) -> list[CheckpointEntry]:
        """Take in a new checkpoint, in the place of one at the same path; return what was unpinned for it."""
        self._entries = [*(held for held in self._entries if held.path != entry.path), entry]
        self._proven.discard(entry.path)
        self._plan_promotion()
        pinned = [held for held in self._entries if held.pinned]
        return [self._change(held, pinned=False) for held in pinned[: -self.max_pinned]]

    def forget(self, entry: CheckpointEntry) -> None:
        """Leave out one that is not there any more."""
        self._entries = [held for held in self._entries if held.path != entry.path]
        self._plan_promotion()

    # ── kinds ─────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, step: int) -> None:
        """Note that the run has come to `step` without trouble; those whose probation is over are stable."""
        self.now = step
        if self.due is not None and step >= self.due:
            self._mark("stable", lambda saved: saved + self.probation_steps <= step, of=("probation",))

    def trouble(self, step: int) -> None:
        """Note that trouble began at `step`: what had not outlived its probation by then is suspect.

        What had done so before the run went back to it stays stable: trouble that returns is one of the path
        from there, or else somebody rolls back to before it.
        """
        first, last = step - self.probation_steps + 1, max(step, self.now or 0)
        self._mark("suspect", lambda saved: first <= saved <= last, spare=self._proven)

    def rolled_back(self, step: int) -> None:
        """Note that the run goes on from `step`: what was saved later is suspect, but stays."""
        self.now = step
        self._mark("suspect", lambda saved: saved > step)
        self._prove()

    def _prove(self) -> None:
        self._proven = {entry.path for entry in self._entries if entry.kind == "stable"}

    def _mark(
        self,
        kind: Kind,
        applies: Callable[[int], bool],
        *,
        of: tuple[Kind, ...] = ("probation", "stable"),
        spare: Set[str] = frozenset(),
    ) -> None:
        for entry in self:
            if entry.kind in of and applies(entry.step) and entry.path not in spare:
                self._change(entry, kind=kind)
        if self.unborn is not None and self.unborn.kind in of and applies(self.unborn.step):
            self.unborn.kind = kind
        self._plan_promotion()

    def _change(self, entry: CheckpointEntry, **facts: object) -> CheckpointEntry:
        changed = entry.model_copy(update=facts)
        self._entries[self._entries.index(entry)] = changed
        self.unrecorded.add(entry.path)
        return changed

    def _plan_promotion(self) -> None:
        self.due = min(
            (entry.step + self.probation_steps for entry in self._entries if entry.kind == "probation"),
            default=None,
        )

    # ── which to take, and which to let go ────────────────────────────────────────────────────────────

    def choices(self, before_step: int | None = None, *, or_oldest: bool = False) -> list[CheckpointEntry]:
        """Return those that a rollback may take unasked, the best first.

        Stable ones come before those on probation, newer ones before older ones; none is ahead of the run,
        later than `before_step`, or suspect. With `or_oldest` stable ones later than that follow, the oldest
        first: it has seen least of what began there.
        """
        reached = [one for one in self._entries if self.now is None or one.step <= self.now]
        found = [
            one
            for kind in ("stable", "probation")
            for one in reversed(reached)
            if one.kind == kind and (before_step is None or one.step <= before_step)
        ]
        if or_oldest:
            found += [one for one in reached if one.kind == "stable" and one not in found]
        return found

    def of_step(self, step: int) -> CheckpointEntry | None:
        """Return the newest checkpoint of `step` that is not suspect, or else the newest of it."""
        found = [entry for entry in self._entries if entry.step == step]
        return max(found, key=lambda entry: (entry.kind != "suspect", entry.created_at), default=None)

    def surplus(self) -> list[CheckpointEntry]:
        """Return those that rotation does not keep.

        It keeps the newest `keep`, the two newest stable ones, the newest suspect one as evidence, and those
        that are pinned: at most ``keep + 3 + max_pinned``. One of the `keep` places belongs to the oldest on
        probation; otherwise frequent saves would push out every checkpoint before its probation ends.
        """
        if not self._entries:
            return []
        of_kind = {
            kind: [entry for entry in self._entries if entry.kind == kind]
            for kind in ("probation", "stable", "suspect")
        }
        newest = self._entries[-self.keep :]
        # Not one of an earlier session that had got further: its probation would not end for long.
        last = newest[-1].step
        candidate = next((entry for entry in of_kind["probation"] if entry.step <= last), None)
        if candidate is not None and candidate not in newest:
            newest = [candidate, *newest[1:]]
        pinned = [entry for entry in self._entries if entry.pinned]
        kept = [*newest, *of_kind["stable"][-_STABLE_KEPT:], *of_kind["suspect"][-1:], *pinned]
        return [entry for entry in self._entries if entry not in kept]
