"""The trainer's end of the control folder: takes commands in, answers them, keeps ``status.json`` fresh.

Files are read and written by a thread of its own, so that a slow or hanging file system never holds up a
training step; only an answer is written by the training thread, because it must be durable before training
goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from filelock import FileLock, Timeout

from trainswitch.config import ControlConfig
from trainswitch.errors import ControlFileError
from trainswitch.files import signature
from trainswitch.intervention.commands import ACTIONS, Command, CommandOutcome, RunState
from trainswitch.intervention.control_file import (
    MAX_RESULTS,
    CheckpointEntry,
    CommandFile,
    StatusFile,
    commands_path,
    read_commands,
    read_status,
    run_folder,
    status_path,
    write_control_file,
)
from trainswitch.intervention.rights import NEW_FOLDER_MODE, check_folder
from trainswitch.intervention.signing import SigningKeys

logger = logging.getLogger("trainswitch")


class ControlChannel:
    """Commands in, answers out. Nothing here raises because of files: failures are reported and retried."""

    def __init__(
        self,
        config: ControlConfig,
        run: str,
        *,
        node: str,
        step: int = 0,
        checkpoints: Callable[[], tuple[CheckpointEntry, ...]] = tuple,
        on_error: Callable[[str], None] = lambda _: None,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        """Describe the channel; `open` begins.

        Args:
            config: where the folder is and how often to look.
            run: name of the run, checked.
            node: host name, for ``status.json``.
            step: first step number.
            checkpoints: tells what checkpoints there are.
            on_error: called with a reason of `CONTROL_FILE_REASONS` for each new trouble with a file.
            on_read: called after each look at the folder.

        Raises:
            SecretFileError: the file of signing keys is not usable.
        """
        self._config = config
        self._run = run
        self._node = node
        self._session = uuid.uuid4().hex
        self._checkpoints = checkpoints
        self._on_error = on_error
        self._on_read = on_read
        self._folder = run_folder(config.folder, run)
        self._commands = commands_path(config.folder, run)
        self._status = status_path(config.folder, run)
        self._keys = SigningKeys(config.signing_key_file) if config.signing_key_file is not None else None
        self._file_lock: FileLock | None = None
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._signature: tuple[int, ...] | None = None
        self._trouble: dict[str, str] = {}
        self._mistake = ""
        self._dirty = True
        self._distrust_before = 0.0
        self._epoch = 0
        self._applied_seq = 0
        self._results: tuple[CommandOutcome, ...] = ()
        self._inherited: dict[str, CommandOutcome] = {}
        self.pending: tuple[Command, ...] = ()
        """Commands to carry out, in order; the training thread looks at this at every step."""
        self.actions: tuple[str, ...] = tuple(ACTIONS)
        """What this trainer accepts."""
        self.state: RunState = "init"
        self.step = step

    # ── life ──────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Take the folder over, write the first status, and begin to poll."""
        self.poll()
        self.refresh()
        self._thread = threading.Thread(target=self._loop, name="trainswitch-control", daemon=True)
        self._thread.start()

    def close(self, state: RunState) -> None:
        """Write the final status and let the folder go."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self.state = state
        self._dirty = True
        self.refresh()
        self._let_go()

    def _loop(self) -> None:
        next_status = 0.0
        while not self._stop.wait(self._config.poll_interval_seconds):
            try:
                self.poll()
                if self._dirty or time.monotonic() >= next_status:
                    self._dirty = True
                    self.refresh()
                    next_status = time.monotonic() + self._config.status_interval_seconds
            except Exception as error:
                # A mistake, ours or a callback's, must not leave the run without control for ever.
                if self._mistake != repr(error):
                    self._mistake = repr(error)
                    logger.exception("the control folder was not looked at; it is tried again")

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────

    def wait(self, timeout: float) -> None:
        """Sleep until a command arrives, at most `timeout` seconds."""
        self._arrived.wait(timeout)

    def poll(self) -> None:
        """Look at ``commands.json`` once."""
        if self._file_lock is None and not self._take_over():
            return
        try:
            found = self._look()
            if found != self._signature:
                self._signature = found
                self._take_in(read_commands(self._commands, self._run, self._keys))
            self._recover("commands")
        except ControlFileError as error:
            self._report("commands", error)
        self._on_read()

    def _look(self) -> tuple[int, ...] | None:
        try:
            return signature(self._commands)
        except OSError as error:
            raise ControlFileError(
                "unreadable", f"cannot read {self._commands}: {error.strerror or error}."
            ) from error

    def _take_in(self, file: CommandFile | None) -> None:
        if file is None:
            return
        if file.epoch < self._epoch:
            raise ControlFileError(
                "stale",
                f"{self._commands} is of controller epoch {file.epoch}, but epoch {self._epoch} has taken "
                "over: stop the older controller.",
            )
        with self._lock:
            self._epoch = file.epoch
            pending = sorted(
                (command for command in file.commands if command.seq > self._applied_seq),
                key=lambda command: command.seq,
            )
            self.pending = tuple(pending)
            if pending:  # under the lock: `answer` clears it there, or a pause would never sleep again
                self._arrived.set()

    def answers(self) -> list[dict[str, Any]]:
        """Return the answers given so far, the newest last, for a checkpoint: their effects are in it."""
        # Without the lock, which is held while status.json is written, for as long as a disk may hang.
        return [outcome.model_dump() for outcome in self._results]

    def inherit(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Take over the answers in a checkpoint that was loaded; those on the disk may be older."""
        self._inherited = {one["id"]: CommandOutcome.model_validate(one) for one in answers}

    def inherited(self, command: Command) -> CommandOutcome | None:
        """Return the answer to `command` whose effect the loaded checkpoint has brought along, if it has."""
        outcome = self._inherited.get(command.id)
        return outcome.model_copy(update={"seq": command.seq}) if outcome is not None else None

    def trusted(self, command: Command) -> bool:
        """Whether it is sure that an earlier session has not carried `command` out."""
        return command.issued_at >= self._distrust_before

    def answer(self, outcome: CommandOutcome) -> None:
        """Acknowledge a command durably; when the disk does not allow it, keep the answer and retry."""
        with self._lock:
            self._applied_seq = max(self._applied_seq, outcome.seq)
            self._results = (*self._results, outcome)[-MAX_RESULTS:]
            self.pending = tuple(command for command in self.pending if command.seq > outcome.seq)
            if not self.pending:
                self._arrived.clear()
            self._dirty = True
        self.refresh()

    # ── status ────────────────────────────────────────────────────────────────────────────────────────

    def announce(self, state: RunState) -> None:
        """Change the state; the thread writes it at its next turn."""
        self.state = state
        self._dirty = True

    def refresh(self) -> None:
        """Write ``status.json`` if there is news."""
        if self._file_lock is None:
            return
        with self._lock:
            if not self._dirty:
                return
            status = StatusFile(
                run=self._run,
                session=self._session,
                state=self.state,
                actions=self.actions,
                step=self.step,
                epoch=self._epoch,
                applied_seq=self._applied_seq,
                results=self._results,
                checkpoints=self._checkpoints(),
                updated_at=time.time(),
                pid=os.getpid(),
                node=self._node,
            )
            try:
                write_control_file(self._status, status, self._keys)
            except ControlFileError as error:
                self._report("status", error)
                if not os.path.isdir(self._folder):  # noqa: PTH112 - Path.is_dir() raises where access is denied
                    self._let_go()
                return
            self._dirty = False
            self._recover("status")

    # ── taking over ───────────────────────────────────────────────────────────────────────────────────

    def _take_over(self) -> bool:
        """Lock the run's folder and learn from ``status.json`` what was answered before."""
        try:
            self._config.folder.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir(mode=NEW_FOLDER_MODE, exist_ok=True)
            check_folder(self._folder, signed=self._keys is not None)
            lock = FileLock(self._folder / ".lock", thread_local=False)
            lock.acquire(timeout=0)
        except ControlFileError as error:
            self._report("folder", error)
            return False
        except Timeout:
            self._report(
                "folder",
                ControlFileError(
                    "foreign",
                    f"another trainer holds {self._folder}: give this run a name of its own; "
                    "it trains on without being controlled.",
                ),
            )
            return False
        except (OSError, NotImplementedError) as error:
            self._report(
                "folder",
                ControlFileError(
                    "write",
                    f"cannot use the control folder {self._folder}: "
                    f"{getattr(error, 'strerror', None) or error}; "
                    "training goes on without being controlled until the folder can be written.",
                ),
            )
            return False
        try:
            self._remember(read_status(self._status, self._run, self._keys))
        except ControlFileError as error:
            if error.reason in ("newer", "unreadable", "permissions"):
                lock.release()
                self._report("folder", error)
                return False
            self._set_aside(error)
        self._file_lock = lock
        self._recover("folder")
        return True

    def _let_go(self) -> None:
        if self._file_lock is not None:
            self._file_lock.release()
            self._file_lock = None
            self._signature = None

    def _remember(self, status: StatusFile | None) -> None:
        if status is not None:
            with self._lock:
                self._applied_seq = max(self._applied_seq, status.applied_seq)
                self._epoch = max(self._epoch, status.epoch)
                if not self._results:  # after a folder's return, this session's own answers are newer
                    self._results = status.results

    def _set_aside(self, error: ControlFileError) -> None:
        """Keep a damaged status.json for people, and do not repeat what it might have answered."""
        self._report("status", error)
        self._distrust_before = time.time()
        damaged = self._status.with_name(f"status.json.damaged-{int(self._distrust_before)}")
        try:
            self._status.replace(damaged)
        except OSError:
            logger.warning("cannot set %s aside as %s.", self._status, damaged)

    # ── trouble ───────────────────────────────────────────────────────────────────────────────────────

    def _report(self, part: str, error: ControlFileError) -> None:
        """Count and log a trouble once, when it begins or changes."""
        if self._trouble.get(part) != str(error):
            self._trouble[part] = str(error)
            logger.warning("%s", error)
            self._on_error(error.reason)

    def _recover(self, part: str) -> None:
        if self._trouble and self._trouble.pop(part, None) is not None:
            logger.warning("the control folder's %s is in order again.", part)
