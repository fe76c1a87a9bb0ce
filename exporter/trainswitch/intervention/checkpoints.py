"""The checkpoints of a run: atomic, verified, rotated, and written beside the training loop.

    <folder>/<run>/step-000000001234/            one checkpoint, see `checkpoint_files`
    <folder>/<run>/step-000000001234.corrupt/    set aside: its content is not what its manifest says
    <folder>/<run>/.new-…, .old-…                what a killed process was about; tidied up at the next start

A folder ``step-…`` appears by a rename, complete and flushed to disk, or not at all.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from trainswitch.errors import CheckpointCorrupt, CheckpointError, ConfigError
from trainswitch.files import fsync_folder
from trainswitch.intervention.checkpoint_files import (
    Kind,
    Manifest,
    disk_error,
    folder_name,
    read_manifest,
    read_state,
    set_aside,
    write_manifest,
    write_state,
)
from trainswitch.intervention.commands import check_run_name
from trainswitch.intervention.control_file import CheckpointEntry

_CHECKPOINT_FOLDER = re.compile(r"step-\d{12,}")
_NEW, _OLD = ".new-", ".old-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveResult:
    """How one save ended; exactly one of `error` and `entry` is set."""

    step: int
    seconds: float
    """From the start of writing until the checkpoint was durable, or had failed."""
    error: CheckpointError | None = None
    entry: CheckpointEntry | None = None


@dataclasses.dataclass(kw_only=True)
class _Save:
    """A save handed to the writer's thread."""

    captured: dict[str, Any]
    step: int
    kind: Kind
    done: threading.Event = dataclasses.field(default_factory=threading.Event)
    error: CheckpointError | None = None


class CheckpointStore:
    """The checkpoints of one run.

    A checkpoint is born on *probation*. It becomes *stable* when the run has gone `probation_steps` further
    without trouble, and *suspect*, for good, when trouble comes before that. A rollback prefers stable ones
    and never takes a suspect one unasked.

    Rotation keeps the newest `keep`, the two newest stable ones, and the newest suspect one as evidence: at
    most ``keep + 3``. One of the `keep` places belongs to the oldest checkpoint on probation; otherwise
    frequent saves would push out every checkpoint before its probation ends, and none would become stable.
    *Newest* is by time of saving, because steps repeat after a rollback.

    The methods are for one thread, the training loop's; `entries`, `busy` and `take_problems` are for any.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        keep: int = 3,
        probation_steps: int = 100,
        on_saved: Callable[[SaveResult], None] | None = None,
    ) -> None:
        """Find the checkpoints that earlier sessions left, and tidy up after one that was killed.

        Nothing is created before the first save. What cannot be used is left alone and told by
        `take_problems`, so a folder that is out of reach for a while does not keep a run from starting.

        Args:
            folder: parent of the run's own folder.
            run: name of the run.
            keep: how many of the newest checkpoints to keep, at least 2.
            probation_steps: how many steps a checkpoint waits before it is stable, at least 1.
            on_saved: called by the writer's thread once for every save that was begun, before a waiting
                `save` returns; of the store's methods it may call `entries` and `take_problems` only.

        Raises:
            RunNameError: `run` cannot be a folder.
            ConfigError: `keep` or `probation_steps` is out of bounds.
        """
        if keep < 2:
            raise ConfigError(
                f"checkpoints keep={keep} is too few: give at least 2, the newest one and one on probation."
            )
        if probation_steps < 1:
            raise ConfigError(f"checkpoints probation_steps={probation_steps} is too few: give at least 1.")
        self._run = check_run_name(run)
        self._folder = folder.absolute() / run
        self._keep = keep
        self._probation_steps = probation_steps
        self._on_saved = on_saved
        self._now: int | None = None
        self._next_promotion: int | None = None

        self._changed = threading.Condition()
        """Guards what follows; notified when the writer's thread has something to do, or has done it."""
        self._entries: list[CheckpointEntry] = []
        self._problems: list[CheckpointError] = []
        self._pending: _Save | None = None
        self._unrecorded: set[int] = set()
        """Steps whose kind has changed since their manifest was written."""
        self._record = False
        self._busy = False
        self._closing = False
        self._writer: threading.Thread | None = None

        self._find()

    @property
    def busy(self) -> bool:
        """Whether a save is in progress: a state captured now would be refused without `wait`."""
        return self._pending is not None

    def finish(self) -> None:
        """Wait until no save is in progress."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is None)

    def entries(self) -> tuple[CheckpointEntry, ...]:
        """Return what the store holds, the newest last; reads memory only."""
        with self._changed:
            return tuple(self._entries)

    def take_problems(self) -> tuple[CheckpointError, ...]:
        """Return, once, the problems that no call raised and no `SaveResult` told.

        Checkpoints that were unusable at the start or passed over by `load`, old ones that could not be
        deleted, kinds that could not be written down, an `on_saved` that failed.
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
        wait: bool = False,
    ) -> None:
        """Hand a captured state to the writer's thread; a step that is saved again is replaced.

        Whatever goes wrong, the checkpoints already there stay, and nothing half-written is left.

        Args:
            captured: from `TrainingState.capture`; the caller does not change it afterwards.
            step: the step after which it was captured.
            kind: ``suspect`` for the evidence of trouble.
            wait: return only when the checkpoint is durable; a save in progress is finished first.

        Raises:
            CheckpointError: ``busy``: the save before is still being written (without `wait`), or the store
                is closed; ``disk`` or ``state``: why this save failed (with `wait`).
        """
        save = _Save(captured=captured, step=step, kind=kind)
        with self._changed:
            if self._pending is not None and not wait:
                raise CheckpointError(
                    "busy",
                    f"checkpoint of step {step} was not saved, because that of step {self._pending.step} is "
                    "still being written: save less often, or to a faster disk.",
                )
            self._changed.wait_for(lambda: self._pending is None)
            if self._closing:
                raise CheckpointError(
                    "busy", f"checkpoint of step {step} was not saved: the store of {self._run!r} is closed."
                )
            self._now = step
            self._pending = save
            self._wake_writer()
        if wait:
            save.done.wait()
            if save.error is not None:
                raise save.error

    def advance(self, step: int) -> None:
        """Note that the run has come to `step` without trouble; cheap enough for every step.

        Checkpoints whose probation is over become stable.
        """
        self._now = step
        if self._next_promotion is not None and step >= self._next_promotion:
            self._mark("stable", lambda saved: saved + self._probation_steps <= step, of=("probation",))

    def trouble(self, step: int) -> None:
        """Note that trouble began at `step`, now or earlier.

        Checkpoints that had not outlived their probation by then, or were saved since, may carry the
        trouble: they become suspect.
        """
        first, last = step - self._probation_steps + 1, max(step, self._now or 0)
        self._mark("suspect", lambda saved: first <= saved <= last)

    def rolled_back(self, step: int) -> None:
        """Note that the run goes on from the checkpoint of `step`: later ones become suspect, but stay."""
        self._now = step
        self._mark("suspect", lambda saved: saved > step)

    def load(
        self, step: int | None = None, before_step: int | None = None
    ) -> tuple[dict[str, Any], CheckpointEntry]:
        """Read a checkpoint back into host memory, its content checked against its checksum first.

        With a step, exactly that one, of whatever kind. Without one, the newest stable one that is not ahead
        of the run and, where that is given, not later than `before_step`; where none can be read, the newest
        such one on probation: the kind of the entry says so.
        `take_problems` tells which ones were passed over and why; a corrupt one is set aside. A save in
        progress is finished first.

        Call `rolled_back` once the state is in place.

        Raises:
            CheckpointCorrupt: the checkpoint of `step` is damaged; it has been set aside.
            CheckpointError: ``state``: there is none to load, or torch cannot load it; ``disk``: the
                checkpoint of `step` cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: not (self._pending or self._record or self._busy))
            entries, now = tuple(self._entries), self._now
        if step is not None:
            for entry in entries:
                if entry.step == step:
                    return self._read(entry), entry
            raise CheckpointError(
                "state",
                f"run {self._run!r} has no checkpoint of step {step}: choose one of those it has "
                f"({_listing(entries)}).",
            )
        latest = min((at for at in (now, before_step) if at is not None), default=None)
        for kind in ("stable", "probation"):
            for entry in reversed(entries):
                if entry.kind == kind and (latest is None or entry.step <= latest):
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
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            writer = self._writer
        if writer is None:
            return
        writer.join(timeout)
        if writer.is_alive():
            raise CheckpointError(
                "busy",
                f"a checkpoint was still being written to {self._folder} after {timeout:g} s and is given "
                "up: check the disk.",
            )

    # What earlier sessions left.

    def _find(self) -> None:
        try:
            children = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            self._report(disk_error(f"cannot read the checkpoints in {self._folder}", error))
            return
        for child in children:
            self._tidy_up(child)
        for child in self._folder.glob("step-*"):
            if _CHECKPOINT_FOLDER.fullmatch(child.name):
                self._take_in(child)
        self._entries.sort(key=lambda entry: entry.created_at)
        self._plan_promotion()

    def _tidy_up(self, child: Path) -> None:
        target = child.with_name(child.name.removeprefix(_OLD))
        try:
            if child.name.startswith(_OLD) and not target.exists():
                child.rename(target)  # killed between the two renames of a replacement
            elif child.name.startswith((_NEW, _OLD)):
                shutil.rmtree(child)
        except OSError as error:
            self._report(disk_error(f"cannot tidy up {child}", error))

    def _take_in(self, folder: Path) -> None:
        try:
            self._entries.append(read_manifest(folder, self._run).entry(folder))
        except CheckpointError as error:
            self._report(error)

    # Kinds.

    def _mark(
        self, kind: Kind, applies: Callable[[int], bool], of: tuple[Kind, ...] = ("probation", "stable")
    ) -> None:
        """Change the kind of checkpoints by their steps, that of a save in progress too."""
        with self._changed:
            for index, entry in enumerate(self._entries):
                if entry.kind in of and applies(entry.step):
                    self._entries[index] = entry.model_copy(update={"kind": kind})
                    self._unrecorded.add(entry.step)
            if self._pending is not None and self._pending.kind in of and applies(self._pending.step):
                self._pending.kind = kind
            self._plan_promotion()
            if self._unrecorded:
                self._record = True
                self._wake_writer()

    def _plan_promotion(self) -> None:
        self._next_promotion = min(
            (entry.step + self._probation_steps for entry in self._entries if entry.kind == "probation"),
            default=None,
        )

    # The writer's thread.

    def _wake_writer(self) -> None:
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(
                target=self._work, name=f"trainswitch-checkpoints-{self._run}", daemon=True
            )
            self._writer.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._pending or self._record or self._closing)
                save = self._pending
                if save is None and not self._record:
                    self._writer = None
                    return
                self._busy, self._record = True, False
            if save is not None:
                self._write(save)
                del save  # as large as the training state
            self._record_kinds()

    def _write(self, save: _Save) -> None:
        started = time.monotonic()
        entry: CheckpointEntry | None = None
        try:
            entry = self._publish(save)
        except OSError as error:
            save.error = disk_error(
                f"cannot save the checkpoint of step {save.step} in {self._folder}", error
            )
        except Exception as error:  # noqa: BLE001 - there is no one else to hear of it
            save.error = CheckpointError(
                "state", f"checkpoint of step {save.step} cannot be written by torch.save: {error!r}."
            )
        result = SaveResult(step=save.step, seconds=time.monotonic() - started, error=save.error, entry=entry)
        if entry is not None:
            self._rotate()
        with self._changed:
            self._pending = None
        if self._on_saved is not None:
            try:
                self._on_saved(result)
            except Exception as error:  # noqa: BLE001 - a caller's mistake must not end the saving
                self._report(CheckpointError("state", f"on_saved failed with {error!r}: mend it."))
        save.done.set()

    def _publish(self, save: _Save) -> CheckpointEntry:
        target = self._folder / folder_name(save.step)
        new, old = (target.with_name(prefix + target.name) for prefix in (_NEW, _OLD))
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            fsync_folder(self._folder.parent)
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            size_bytes, sha256, torch_version = write_state(new, save.captured)
            with self._changed:
                newest = self._entries[-1].created_at if self._entries else 0.0
                manifest = Manifest(
                    run=self._run,
                    step=save.step,
                    created_at=max(time.time(), newest + 1e-3),  # the clock may have been set back
                    kind=save.kind,
                    size_bytes=size_bytes,
                    sha256=sha256,
                    torch_version=torch_version,
                )
            write_manifest(new, manifest)
            self._swap(new, target, old)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        fsync_folder(self._folder)
        shutil.rmtree(old, ignore_errors=True)
        with self._changed:
            entry = manifest.entry(target)
            if save.kind != manifest.kind:
                entry = entry.model_copy(update={"kind": save.kind})
                self._unrecorded.add(save.step)
            self._entries = [held for held in self._entries if held.step != save.step]
            self._entries.append(entry)
            self._plan_promotion()
        return entry

    def _swap(self, new: Path, target: Path, old: Path) -> None:
        """Put `new` in the place of `target`; until it is there, what was there is kept as `old`."""
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            if any(entry.path == str(target) for entry in self.entries()):
                target.rename(old)
            else:
                set_aside(target, "foreign")
        try:
            new.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise

    def _rotate(self) -> None:
        entries = self.entries()
        kept = _worth_keeping(entries, self._keep)
        for entry in entries:
            if entry.step not in kept:
                self._delete(entry)

    def _delete(self, entry: CheckpointEntry) -> None:
        folder = Path(entry.path)
        doomed = folder.with_name(_NEW + folder.name)  # so that a kill leaves nothing that looks whole
        try:
            folder.rename(doomed)
            self._forget(entry)
            shutil.rmtree(doomed)
        except OSError as error:
            self._report(disk_error(f"cannot delete the old checkpoint {folder}", error))

    def _record_kinds(self) -> None:
        """Write changed kinds into the manifests; what fails is tried again with the next save or change."""
        with self._changed:
            entries = [entry for entry in self._entries if entry.step in self._unrecorded]
            self._unrecorded.clear()
        for entry in entries:
            self._record_kind(entry)

    def _record_kind(self, entry: CheckpointEntry) -> None:
        folder = Path(entry.path)
        try:
            manifest = read_manifest(folder, self._run)
            write_manifest(folder, manifest.model_copy(update={"kind": entry.kind}))
        except CheckpointError as error:
            self._report(error)
        except OSError as error:
            self._report(disk_error(f"cannot mark the checkpoint {folder} as {entry.kind}", error))
        else:
            return
        with self._changed:
            self._unrecorded.add(entry.step)

    # Reading.

    def _read_or_report(self, entry: CheckpointEntry) -> dict[str, Any] | None:
        try:
            return self._read(entry)
        except CheckpointError as error:
            self._report(error)
            return None

    def _read(self, entry: CheckpointEntry) -> dict[str, Any]:
        folder = Path(entry.path)
        try:
            return read_state(folder, read_manifest(folder, self._run))
        except CheckpointCorrupt as error:
            self._forget(entry)
            try:
                outcome = f"was set aside as {set_aside(folder, 'corrupt').name}"
            except OSError as failure:
                outcome = f"could not be set aside ({failure.strerror or failure})"
            raise CheckpointCorrupt(f"{error}, so the checkpoint {outcome}: choose another.") from None

    def _forget(self, entry: CheckpointEntry) -> None:
        with self._changed:
            self._entries = [held for held in self._entries if held.step != entry.step]
            self._plan_promotion()

    def _report(self, problem: CheckpointError) -> None:
        with self._changed:
            self._problems.append(problem)


def _worth_keeping(entries: tuple[CheckpointEntry, ...], keep: int) -> set[int]:
    """Return the steps of the checkpoints that rotation keeps; `entries` has the newest last."""
    steps = [entry.step for entry in entries]
    of_kind = {
        kind: [entry.step for entry in entries if entry.kind == kind]
        for kind in ("probation", "stable", "suspect")
    }
    # Not one of an earlier session that had got further: its probation would not end for long.
    candidate = next((step for step in of_kind["probation"] if step <= steps[-1]), None)
    newest = steps[-keep:]
    if candidate is not None and candidate not in newest:
        newest = [candidate, *newest[1:]]
    return {*newest, *of_kind["stable"][-2:], *of_kind["suspect"][-1:]}


def _listing(entries: tuple[CheckpointEntry, ...]) -> str:
    return ", ".join(f"{entry.step} {entry.kind}" for entry in entries) or "none"
