"""CheckpointWriter: the thread that writes a run's checkpoints, and what changes about them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainswitch.errors import CheckpointError
from trainswitch.intervention.checkpoint_files import (
    Kind,
    Manifest,
    RankPart,
    disk_error,
    read_manifest,
    write_manifest,
    write_state,
)
from trainswitch.intervention.checkpoint_folder import CheckpointFolder
from trainswitch.intervention.checkpoint_list import CheckpointList
from trainswitch.intervention.control_file import CheckpointEntry
from trainswitch.intervention.rank_parts import await_parts, delete_parts

logger = logging.getLogger("trainswitch")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveResult:
    """How one save ended; exactly one of `error` and `entry` is set, on other ranks than 0 at most one."""

    step: int
    seconds: float
    """From the start of writing until the checkpoint was durable, or had failed."""
    error: CheckpointError | None = None
    entry: CheckpointEntry | None = None
    nonfinite: str = ""
    """Where the state that was saved holds NaN or infinity; empty where it does not."""


@dataclasses.dataclass(kw_only=True)
class Save:
    """A save handed to the writer's thread."""

    captured: dict[str, Any]
    step: int
    kind: Kind
    pin: bool
    done: threading.Event = dataclasses.field(default_factory=threading.Event)
    error: CheckpointError | None = None


class CheckpointWriter:
    """Writes one checkpoint at a time, rotates the old ones, and keeps the manifests up to date.

    Its owner, on another thread, shares the list and the lock.
    """

    def __init__(
        self,
        run: str,
        folder: CheckpointFolder,
        entries: CheckpointList,
        changed: threading.Condition,
        *,
        judge: Callable[[dict[str, Any]], str],
        on_saved: Callable[[SaveResult], None] | None,
        report: Callable[[CheckpointError], None],
    ) -> None:
        """Begin with the first `save` or `record`.

        Args:
            run: name of the run.
            folder: of its checkpoints.
            entries: which checkpoints there are.
            changed: guards `entries`; notified when a save has ended.
            judge: returns where a captured state holds NaN or infinity; empty where it does not.
            on_saved: called once for every save that was begun, before the next one can begin.
            report: hears of what no call raises and no `SaveResult` tells; called without the lock.
        """
        self._run = run
        self._folder = folder
        self._list = entries
        self._changed = changed
        self._judge = judge
        self._on_saved = on_saved
        self._report = report
        self._pending: Save | None = None
        self._record = False
        self._busy = False
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is in progress."""
        return self._pending is not None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write, and nothing being written."""
        return not (self._pending or self._record or self._busy)

    def save(self, save: Save, *, wait: bool) -> None:
        """Write a checkpoint; see `CheckpointStore.save`."""
        with self._changed:
            if self._pending is not None and not wait:
                raise CheckpointError(
                    "busy",
                    f"checkpoint of step {save.step} was not saved, because that of step "
                    f"{self._pending.step} is still being written: save less often, or to a faster disk.",
                )
            self._changed.wait_for(lambda: self._pending is None)
            if self._closing:
                raise CheckpointError(
                    "busy",
                    f"checkpoint of step {save.step} was not saved: the store of {self._run!r} is closed.",
                )
            self._wake()
            self._list.now = save.step
            self._list.unborn = self._pending = save
        if wait:
            save.done.wait()
            if save.error is not None:
                raise save.error

    def record(self) -> None:
        """Write down what the manifests do not say yet; called with the lock held."""
        if self._list.unrecorded:
            with contextlib.suppress(RuntimeError):  # no thread can be started: with the next save or change
                self._wake()
                self._record = True

    def close(self, timeout: float) -> None:
        """Finish the save in progress and end the thread; see `CheckpointStore.close`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return
        thread.join(timeout)
        if thread.is_alive():
            raise CheckpointError(
                "busy",
                f"a checkpoint was still being written to {self._folder.path} after {timeout:g} s and is "
                "given up: check the disk.",
            )

    # ── the writer's thread ───────────────────────────────────────────────────────────────────────────

    def _wake(self) -> None:
        """Have the thread look, once the lock is free, at what there is to do.

        Raises:
            RuntimeError: it cannot be started; a limit on threads, say. There must be nothing to do then.
        """
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(
                target=self._work, name=f"trainswitch-checkpoints-{self._run}", daemon=True
            )
            thread.start()
            self._thread = thread
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._pending or self._record or self._closing)
                save = self._pending
                if save is None and not self._record:
                    self._thread = None
                    return
                self._busy, self._record = True, False
            if save is not None:
                self._write(save)
                del save  # as large as the training state
            self._record_changes()

    def _write(self, save: Save) -> None:
        started = time.monotonic()
        entry, nonfinite = None, ""
        try:
            entry, nonfinite = self._publish(save)
        except OSError as error:
            save.error = disk_error(
                f"cannot save the checkpoint of step {save.step} in {self._folder.path}", error
            )
        except CheckpointError as error:
            save.error = error
        except Exception as error:  # noqa: BLE001 - there is no one else to hear of it
            save.error = CheckpointError(
                "state", f"checkpoint of step {save.step} cannot be written by torch.save: {error!r}."
            )
        result = SaveResult(
            step=save.step,
            seconds=time.monotonic() - started,
            error=save.error,
            entry=entry,
            nonfinite=nonfinite,
        )
        if entry is not None:
            self._rotate()
        if self._on_saved is not None:  # while it is busy: nobody takes this result for that of a newer save
            try:
                self._on_saved(result)
            except Exception as error:  # noqa: BLE001 - a caller's mistake must not end the saving
                self._report(CheckpointError("state", f"on_saved failed with {error!r}: mend it."))
        with self._changed:
            self._list.unborn = self._pending = None
        save.done.set()

    def _publish(self, save: Save) -> tuple[CheckpointEntry, str]:
        """Write a checkpoint; return its entry, and where it holds NaN or infinity."""
        with self._changed:
            target = self._list.place(self._folder.path, save.step)
            replaces = any(entry.path == str(target) for entry in self._list)
        meta = save.captured.get("meta", {})
        moment, ranks = meta.get("moment", ""), meta.get("ranks", 1)
        with self._folder.draft(target, replaces=replaces) as new:  # from here on, ranks keep their parts
            nonfinite = self._judge(save.captured)
            size_bytes, sha256, torch_version = write_state(new, save.captured)
            parts, theirs = await_parts(self._folder.path, self._run, save.step, moment, ranks)
            nonfinite = nonfinite or theirs
            with self._changed:
                if nonfinite:
                    save.kind = "suspect"
                manifest = Manifest(
                    run=self._run,
                    step=save.step,
                    created_at=self._list.after(time.time()),
                    kind=save.kind,
                    size_bytes=size_bytes,
                    sha256=sha256,
                    torch_version=torch_version,
                    pinned=save.pin,
                    nonfinite=nonfinite,
                    moment=moment,
                    parts=parts,
                )
            write_manifest(new, manifest)
        with self._changed:
            entry = manifest.entry(target)
            if save.kind != manifest.kind:
                entry = entry.model_copy(update={"kind": save.kind})
                self._list.unrecorded.add(entry.path)
            for unpinned in self._list.add(entry):
                logger.warning("checkpoint of step %d is not pinned any more: newer ones are.", unpinned.step)
        if nonfinite:
            self._report(
                CheckpointError(
                    "nonfinite",
                    f"the checkpoint of step {save.step} is suspect from birth, because {nonfinite}: look at "
                    "the run, and name the step to load it all the same.",
                )
            )
        return entry, nonfinite

    def _rotate(self) -> None:
        with self._changed:
            surplus = self._list.surplus()
        for entry in surplus:
            folder = Path(entry.path)
            parts: tuple[RankPart, ...] = ()
            with contextlib.suppress(CheckpointError):  # a damaged one goes all the same
                parts = read_manifest(folder, self._run).parts
            try:
                self._folder.delete(folder)
                delete_parts(self._folder.path, self._run, parts)
            except OSError as error:
                self._report(disk_error(f"cannot delete the old checkpoint {folder}", error))
            if not folder.exists():
                with self._changed:
                    self._list.forget(entry)

    def _record_changes(self) -> None:
        """Write changed kinds into the manifests; what fails is tried again with the next save or change."""
        with self._changed:
            entries = [entry for entry in self._list if entry.path in self._list.unrecorded]
            self._list.unrecorded.clear()
        for entry in entries:
            try:
                self._folder.record(entry)
            except CheckpointError as error:
                self._report(error)
                with self._changed:
                    self._list.unrecorded.add(entry.path)
