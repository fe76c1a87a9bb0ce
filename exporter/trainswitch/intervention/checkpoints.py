"""The checkpoints of a run: atomic, verified, rotated, and written beside the training loop.

`docs/checkpoints.md` describes their life. Here they meet: the list that says which is what
(`checkpoint_list`), the folder that they are in (`checkpoint_folder`), and the thread that writes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from trainswitch.errors import CheckpointCorrupt, CheckpointError, ConfigError
from trainswitch.intervention import finite
from trainswitch.intervention.checkpoint_files import read_manifest, read_state, set_aside
from trainswitch.intervention.checkpoint_folder import CheckpointFolder
from trainswitch.intervention.checkpoint_list import CheckpointList
from trainswitch.intervention.checkpoint_writer import CheckpointWriter, Save, SaveResult
from trainswitch.intervention.commands import check_run_name
from trainswitch.intervention.control_file import CheckpointEntry
from trainswitch.intervention.rank_parts import check_parts


class CheckpointStore:
    """The checkpoints of one run.

    A checkpoint is born on *probation*. It becomes *stable* when the run has gone `probation_steps` further
    without trouble, and *suspect*, for good, when trouble comes before that, or if its weights hold NaN or
    infinity. A rollback prefers stable ones and never takes a suspect one unasked.

    The methods are for one thread, the training loop's; `entries`, `busy` and `take_problems` are for any.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        keep: int = 3,
        probation_steps: int = 100,
        max_pinned: int = 3,
        judge: Callable[[dict[str, Any]], str] = finite.nonfinite,
        on_saved: Callable[[SaveResult], None] | None = None,
    ) -> None:
        """Find the checkpoints that earlier sessions left, and tidy up after one that was killed.

        Nothing is created before the first save. What cannot be used is left alone and told by
        `take_problems`, so a folder that is out of reach for a while does not keep a run from starting.

        Args:
            folder: parent of the run's own folder.
            run: name of the run.
            keep: how many of the newest checkpoints to keep, at least 2; see `CheckpointList.surplus`.
            probation_steps: how many steps a checkpoint waits before it is stable, at least 1.
            max_pinned: how many checkpoints can be pinned at a time, at least 1.
            judge: returns where a captured state holds NaN or infinity; called by the writer's thread.
            on_saved: called by the writer's thread once for every save that was begun, before the next one
                can begin; of the store's methods it may call `entries` and `take_problems` only.

        Raises:
            RunNameError: `run` cannot be a folder.
            ConfigError: `keep`, `probation_steps` or `max_pinned` is out of bounds.
        """
        if keep < 2:
            raise ConfigError(
                f"checkpoints keep={keep} is too few: give at least 2, the newest one and one on probation."
            )
        for name, value in (("probation_steps", probation_steps), ("max_pinned", max_pinned)):
            if value < 1:
                raise ConfigError(f"checkpoints {name}={value} is too few: give at least 1.")
        self._run = check_run_name(run)
        self._folder = CheckpointFolder(folder.absolute() / run, run)
        self._changed = threading.Condition()
        """Guards what follows, and what the writer does; notified when that has ended."""
        self._list = CheckpointList(keep=keep, probation_steps=probation_steps, max_pinned=max_pinned)
        entries, self._problems = self._folder.find()
        self._list.find(entries)
        self._writer = CheckpointWriter(
            run,
            self._folder,
            self._list,
            self._changed,
            judge=judge,
            on_saved=on_saved,
            report=self._report,
        )

    @property
    def busy(self) -> bool:
        """Whether a save is in progress: a state captured now would be refused without `wait`."""
        return self._writer.busy

    def finish(self) -> None:
        """Wait until no save is in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._writer.busy)

    def entries(self) -> tuple[CheckpointEntry, ...]:
        """Return what the store holds, the newest last; reads memory only."""
        with self._changed:
            return tuple(self._list)

    def take_problems(self) -> tuple[CheckpointError, ...]:
        """Return, once, the problems that no call raised and no `SaveResult` told as its error.

        Checkpoints that were unusable at the start or passed over by `load`, or are suspect from birth, old
        ones that could not be deleted, kinds that could not be written down, an `on_saved` that failed.
        """
        with self._changed:
            problems, self._problems = tuple(self._problems), []
            return problems

    def save(
        self,
        captured: dict[str, Any],
        step: int,
        *,
        kind: Literal["probation", "suspect"] = "probation",
        pin: bool = False,
        wait: bool = False,
    ) -> None:
        """Hand a captured state to the writer's thread.

        A checkpoint of the same step is replaced, unless it is stable or pinned: then both are kept. Whatever
        goes wrong, the checkpoints already there stay, and nothing half-written is left.

        Args:
            captured: from `TrainingState.capture`; the caller does not change it afterwards. If its meta says
                that it is one of several ``ranks``' parts, the checkpoint is there once all parts are.
            step: the step after which it was captured.
            kind: ``suspect`` for the evidence of trouble.
            pin: keep it from rotation; beyond `max_pinned`, the pin of the oldest ends.
            wait: return only when the checkpoint is durable; a save in progress is finished first.

        Raises:
            CheckpointError: ``busy``: the save before is still being written (without `wait`), or the store
                is closed; ``disk`` or ``state``: why this save failed (with `wait`).
        """
        self._writer.save(Save(captured=captured, step=step, kind=kind, pin=pin), wait=wait)

    def advance(self, step: int) -> None:
        """Note that the run has come to `step` without trouble; cheap enough for every step.

        Checkpoints whose probation is over become stable.
        """
        self._list.now = step
        due = self._list.due
        if due is not None and step >= due:
            self._note(lambda: self._list.advance(step))

    def trouble(self, step: int) -> None:
        """Note that trouble began at `step`, now or earlier.

        Checkpoints that had not outlived their probation by then, or were saved since, may carry the
        trouble: they become suspect.
        """
        self._note(lambda: self._list.trouble(step))

    def rolled_back(self, step: int) -> None:
        """Note that the run goes on from the checkpoint of `step`: later ones become suspect, but stay."""
        self._note(lambda: self._list.rolled_back(step))

    def load(
        self, step: int | None = None, before_step: int | None = None, *, or_oldest: bool = False
    ) -> tuple[dict[str, Any], CheckpointEntry]:
        """Read a checkpoint back into host memory, its content checked against its checksum first.

        With a step, exactly that one, of whatever kind. Without one, the newest stable one that is not ahead
        of the run and, where that is given, not later than `before_step`; where none can be read, the newest
        such one on probation: the kind of the entry says so. With `or_oldest` the oldest stable one
        of all comes after those.
        `take_problems` tells which ones were passed over and why; a corrupt one is set aside. A save in
        progress is finished first.

        Call `rolled_back` once the state is in place.

        Raises:
            CheckpointCorrupt: the checkpoint of `step` is damaged; it has been set aside.
            CheckpointError: ``state``: there is none to load, or torch cannot load it; ``disk``: the
                checkpoint of `step` cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._writer.idle)
            entries, choices = tuple(self._list), self._list.choices(before_step, or_oldest=or_oldest)
            named = None if step is None else self._list.of_step(step)
        if named is not None:
            return self._read(named), named
        if step is not None:
            raise CheckpointError(
                "state",
                f"run {self._run!r} has no checkpoint of step {step}: choose one of those it has "
                f"({_listing(entries)}).",
            )
        for entry in choices:
            captured = self._read_or_report(entry)
            if captured is not None:
                return captured, entry
        raise CheckpointError(
            "state",
            f"run {self._run!r} has no checkpoint to roll back to: none of those it has "
            f"({_listing(entries)}) is readable, free of suspicion and not ahead of "
            f"{'the run' if before_step is None else f'step {before_step}'}; name one's step to load it all "
            "the same.",
        )

    def close(self, timeout: float = 30.0) -> None:
        """Finish the save in progress and end the writer's thread; later saves are refused.

        Raises:
            CheckpointError: ``busy``: it was not finished within `timeout` seconds. It is given up when the
                process ends, and tidied up at the next start.
        """
        self._writer.close(timeout)

    def _note(self, change: Callable[[], None]) -> None:
        """Change kinds, and have the writer's thread write them down."""
        with self._changed:
            change()
            self._writer.record()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────

    def _read_or_report(self, entry: CheckpointEntry) -> dict[str, Any] | None:
        try:
            return self._read(entry)
        except CheckpointError as error:
            self._report(error)
            return None

    def _read(self, entry: CheckpointEntry) -> dict[str, Any]:
        folder = Path(entry.path)
        try:
            manifest = read_manifest(folder, self._run)
            check_parts(self._folder.path, self._run, manifest)
            return read_state(folder, manifest)
        except CheckpointCorrupt as error:
            self._forget(entry)
            try:
                outcome = f"was set aside as {set_aside(folder, 'corrupt').name}"
            except OSError as failure:
                outcome = f"could not be set aside ({failure.strerror or failure})"
            raise CheckpointCorrupt(f"{error}, so the checkpoint {outcome}: choose another.") from None

    def _forget(self, entry: CheckpointEntry) -> None:
        with self._changed:
            self._list.forget(entry)

    def _report(self, problem: CheckpointError) -> None:
        with self._changed:
            self._problems.append(problem)


def _listing(entries: tuple[CheckpointEntry, ...]) -> str:
    return ", ".join(f"{entry.step} {entry.kind}" for entry in entries) or "none"
