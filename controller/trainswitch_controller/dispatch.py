"""Carries commands from the journal to ``commands.json``, and answers from ``status.json`` to the journal."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import select

from trainswitch.errors import ControlFileError
from trainswitch.intervention.control_file import (
    CommandFile,
    commands_path,
    status_path,
    write_control_file,
)
from trainswitch.intervention.rights import check_folder
from trainswitch_controller import intake, open_commands, orders, runs
from trainswitch_controller.acknowledge import match
from trainswitch_controller.control_folder import keys_of
from trainswitch_controller.errors import ControllerError, LeadershipLost
from trainswitch_controller.held import Held, Signature, content_of, failure_reason, on_the_wire, signature_of
from trainswitch_controller.leadership import Alone, Leadership
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.problems import Problems
from trainswitch_controller.records import CommandRecord, EpisodeRecord
from trainswitch_controller.term import adopt, change_in_term, take_epoch
from trainswitch_controller.unit import Unit

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_LONGEST_REST_S = 1.0


class Dispatcher:
    """One thread that looks every `interval` seconds, and at once after `wake`.

    Whatever fails is reported once, counted, and tried again at the next look; nothing is dropped before its
    expiry.
    """

    def __init__(
        self,
        ledger: Ledger,
        policy_sha256: str,
        interval: float,
        leadership: Leadership | None = None,
        on_lead: Callable[[], None] = lambda: None,
    ) -> None:
        """Dispatch for `ledger` while `leadership` is held; `on_lead` is called when it has been taken."""
        self.epoch: int | None = None
        """Fencing number of this term; None until journal and control folder have been reconciled, and while
        another controller leads."""
        self.follows = False
        """Another controller leads: this one takes in alerts and orders, and writes no file."""
        self._ledger = ledger
        self._policy_sha256 = policy_sha256
        self._leadership = leadership or Alone()
        self._on_lead = on_lead
        self._opened = False
        self._interval = interval
        self._held: dict[str, Held] = {}
        self._statuses: dict[str, Signature] = {}
        self._problems = Problems()
        self._fenced: set[str] = set()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainswitch-dispatcher", daemon=True)

    def start(self) -> None:
        """Look regularly from a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after a last look, so that what was committed is written."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._leadership.release()

    def wake(self) -> None:
        """Look now: something was committed. Whoever leads looks; others find nothing to do."""
        if not self.follows:
            self._wake.set()

    def problems(self) -> list[str]:
        """Return what stands in the way of any command; a run whose folder is missing does not."""
        return [text for name, text in self._problems.all().items() if not name.startswith("run ")]

    def tick(self) -> None:
        """Look once: who leads decides again what has cooled down, takes in answers, and writes commands.

        Raises:
            LeadershipLost: another controller leads since a moment ago.
            ControllerError: the journal or the control folder is not usable.
        """
        if not self._opened:
            self._ledger.journal.open()
            self._opened = True
        if self._ledger.journal.problem is not None:
            self._ledger.journal.probe()
        if not self._leads():
            return
        if self._ledger.journal.shared:
            self._ledger.journal.read(self._ledger.metrics.responses.catch_up)
        self._let_time_pass()
        waiting: dict[str, list[CommandRecord]] = {
            run: [] for run, held in self._held.items() if held.content
        }
        for command in self._ledger.journal.read(open_commands.of_all_runs):
            waiting.setdefault(command.run, []).append(command)
        for run, commands in waiting.items():
            self._serve(run, commands)

    def look(self) -> None:
        """Do what `tick` does; what stands in its way is reported and tried again at the next look."""
        try:
            self.tick()
        except LeadershipLost as error:
            log.warning("%s", error)
            self._step_down()
        except ControllerError as error:
            self._problems.report("dispatcher", str(error))
        except Exception as error:
            # The thread must outlive any fault: it says so, and the controller is not ready.
            if self._problems.report(
                "dispatcher", f"the dispatcher failed: {error!r}; this is a bug, see the log."
            ):
                log.exception("dispatcher failed")
        else:
            self._problems.report("dispatcher", None)

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._interval)
            self._wake.clear()
            begun = time.monotonic()
            self.look()
            # In a storm there is always something to look at: leave alerts as much time as looking has taken.
            self._stopping.wait(min(time.monotonic() - begun, _LONGEST_REST_S))
        self.look()

    # --- who leads ------------------------------------------------------------------------------------------

    def _leads(self) -> bool:
        """Take or keep the lead, and return whether this controller has it."""
        if not self._leadership.hold():
            if self.epoch is not None:
                log.warning("epoch %d has ended: another controller leads, this one follows.", self.epoch)
            self._step_down()
            return False
        if self.epoch is None:
            try:
                self._reconcile()
            except ControllerError:
                self._leadership.release()  # another one may be able to
                raise
        return True

    def _stay(self) -> None:
        """Make sure that this controller leads still, right before it writes."""
        if not self._leadership.hold():
            raise LeadershipLost(f"epoch {self.epoch} has ended: this controller leads no more and follows.")

    def _step_down(self) -> None:
        self.epoch = None
        self.follows = True
        self._forget()
        self._ledger.metrics.lead(leads=False)

    def _forget(self) -> None:
        """Forget what the files held: somebody else may have written since."""
        self._held.clear()
        self._statuses.clear()
        self._fenced.clear()
        self._problems.clear()

    def _reconcile(self) -> None:
        """Begin a term: take a new epoch, and learn what the command files hold."""
        names = runs.list_runs(self._ledger.control_dir)
        epoch = take_epoch(self._ledger, self._policy_sha256)
        for run in names:
            self._stay()
            signature = signature_of(commands_path(self._ledger.control_dir, run))
            found = self._inspect_commands(run)
            if found is not None and signature is not None:
                content = tuple((command.id, command.seq) for command in found.commands)
                held = Held(found.epoch, content, signature[0] / 1e9, signature)
                adopt(self._ledger, run, found.commands, held)
                self._held[run] = held
        self.epoch = epoch
        self.follows = False
        self._on_lead()
        self._ledger.metrics.lead(leads=True)
        log.info("reconciled: epoch %d, %d runs in %s", epoch, len(names), self._ledger.control_dir)

    def _change(self, work: Callable[[Unit], Result]) -> Result:
        """Change the journal, unless another controller has begun a later term."""
        assert self.epoch is not None
        return change_in_term(self._ledger, self.epoch, work)

    # --- what only time decides -----------------------------------------------------------------------------

    def _let_time_pass(self) -> None:
        now = self._ledger.now()
        cooled = select(EpisodeRecord.id).where(
            intake.is_due(self._ledger.policy, now), EpisodeRecord.resolved_at.is_(None)
        )
        unapproved = select(CommandRecord).where(
            CommandRecord.state == "awaiting_approval", CommandRecord.expires_at <= now
        )
        if self._ledger.journal.read(lambda session: session.scalar(cooled.limit(1))) is not None:
            self._reconsider()
        if self._ledger.journal.read(lambda session: session.scalar(unapproved.limit(1))) is None:
            return

        def expire(unit: Unit) -> None:
            for command in unit.session.scalars(unapproved).all():
                orders.finish(unit, command, "expired", at=now, detail="nobody approved it in time.")

        self._change(expire)

    def _reconsider(self) -> None:
        beyond: int | None = 0
        while beyond is not None:
            judged, beyond = self._change(functools.partial(intake.reconsider, beyond=beyond))
            self._ledger.note(judged)

    # --- one run --------------------------------------------------------------------------------------------

    def _serve(self, run: str, commands: Sequence[CommandRecord]) -> None:
        self._stay()
        held = self._held.get(run)
        if held is not None and signature_of(commands_path(self._ledger.control_dir, run)) != held.signature:
            self._held.pop(run)  # somebody else changed or removed the file: look again before the next write
            held = None
        if held is not None:
            commands = self._mark_written(run, commands, held)
        if commands:
            commands = self._take_answers(run, commands)
        if commands:
            commands = self._expire(run, commands)
        self._write(run, commands)

    def _take_answers(self, run: str, commands: Sequence[CommandRecord]) -> Sequence[CommandRecord]:
        """Move answers from ``status.json`` into the journal and return what is still open."""
        signature = signature_of(status_path(self._ledger.control_dir, run))
        if signature is None or self._statuses.get(run) == signature:
            return commands
        key = f"run {run} status.json"
        try:
            status = runs.load_status(self._ledger.control_dir, run)
        except ControlFileError as error:
            if self._problems.report(key, str(error)):
                self._ledger.metrics.file_error("status", error.reason)
            return commands
        self._problems.report(key, None)
        if status is None:
            return commands
        self._check_fence(run, status.epoch, "status")
        answers = match(commands, status)
        for sentence in answers.displaced.values():
            self._ledger.metrics.file_error("status", "displaced")
            log.error("run %s: %s; the command gets a new number", run, sentence)

        if answers.outcomes or answers.displaced:
            self._change(lambda unit: open_commands.store_answers(unit, run, answers, status.session))
            commands = self._reload(run)
        self._statuses[run] = signature
        return commands

    def _expire(self, run: str, commands: Sequence[CommandRecord]) -> Sequence[CommandRecord]:
        """End what nobody can or will carry out any more and return what is still open."""
        now = self._ledger.now()
        held = self._held.get(run)
        obstacle = self._problems.get(f"run {run} commands.json") or "the controller was not running."
        late = open_commands.too_late(commands, held, now, obstacle)
        if not late:
            return commands

        self._change(lambda unit: open_commands.expire(unit, run, late, now))
        return self._reload(run)

    def _write(self, run: str, commands: Sequence[CommandRecord]) -> None:
        """Have ``commands.json`` hold exactly `commands`."""
        assert self.epoch is not None
        content = content_of(commands)
        held = self._held.get(run)
        if held is not None and held.content == content and (held.epoch == self.epoch or not content):
            return
        if held is None and not content:
            return
        key = f"run {run} commands.json"
        found = self._inspect_commands(run)
        if found is not None:
            self._check_fence(run, found.epoch, "commands")
        if run in self._fenced:
            self._ledger.metrics.write_failure("fenced")
            return
        path = commands_path(self._ledger.control_dir, run)
        self._stay()
        at = self._ledger.now()
        keys = keys_of(self._ledger.control_dir)
        try:
            check_folder(path.parent, signed=keys is not None)
            write_control_file(
                path,
                CommandFile(run=run, epoch=self.epoch, commands=tuple(on_the_wire(one) for one in commands)),
                keys,
            )
        except ControlFileError as error:
            reason = failure_reason(error)
            self._ledger.metrics.write_failure(reason)
            if reason == "missing_folder" and not content:
                self._held.pop(run, None)
                self._problems.report(key, None)
            else:
                self._problems.report(key, str(error))
                self._report_unwritable(reason)
            return
        for healed in (key, f"run {run} damage", "control folder"):
            self._problems.report(healed, None)
        signature = signature_of(path)
        if signature is None:
            return
        self._held[run] = Held(self.epoch, content, at, signature)
        self._mark_written(run, commands, self._held[run])

    def _mark_written(
        self, run: str, commands: Sequence[CommandRecord], held: Held
    ) -> Sequence[CommandRecord]:
        """Note in the journal which of `commands` the file holds, and return them as they are then."""
        if not any(command.state == "pending" and held.holds(command) for command in commands):
            return commands

        self._change(lambda unit: open_commands.mark_written(unit, run, held))
        return self._reload(run)

    # --- tools ----------------------------------------------------------------------------------------------

    def _inspect_commands(self, run: str) -> CommandFile | None:
        """Return the run's ``commands.json`` as it is on disk; damage is counted and gives None."""
        key = f"run {run} damage"
        try:
            found = runs.load_commands(self._ledger.control_dir, run)
        except ControlFileError as error:
            if self._problems.report(key, f"{error} The controller's next write replaces it."):
                self._ledger.metrics.file_error("commands", error.reason)
            return None
        self._problems.report(key, None)
        return found

    def _check_fence(self, run: str, epoch: int, file: str) -> None:
        """Stop writing for `run` if a newer controller has been at work there."""
        assert self.epoch is not None
        if epoch <= self.epoch or run in self._fenced:
            return
        self._fenced.add(run)
        self._ledger.metrics.file_error(file, "stale")
        self._problems.report(
            "fence",
            f"run {run} has seen a controller with epoch {epoch}, and this one has {self.epoch}: stop one of "
            "the two, then restart the other.",
        )

    def _report_unwritable(self, reason: str) -> None:
        if reason in {"no_space", "read_only"}:
            self._problems.report(
                "control folder",
                f"the control folder {self._ledger.control_dir} cannot be written ({reason}): free "
                "space, or correct its permissions.",
            )

    def _reload(self, run: str) -> Sequence[CommandRecord]:
        return self._ledger.journal.read(lambda session: open_commands.of_run(session, run))
