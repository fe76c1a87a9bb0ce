"""Carries commands from the journal to ``commands.json``, and answers from ``status.json`` to the journal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from trainswitch.errors import ControlFileError
from trainswitch.intervention.commands import Command
from trainswitch.intervention.control_file import (
    CommandFile,
    commands_path,
    status_path,
    write_control_file,
)
from trainswitch_controller import intake, orders, runs
from trainswitch_controller.acknowledge import match
from trainswitch_controller.errors import ControllerError
from trainswitch_controller.held import Held, Signature, content_of, failure_reason, on_the_wire, signature_of
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.problems import Problems
from trainswitch_controller.records import (
    OPEN_STATES,
    SCHEMA_VERSION,
    AnswerRecord,
    CommandRecord,
    EpisodeRecord,
    StartRecord,
)
from trainswitch_controller.unit import Unit
from trainswitch_controller.validation import storable

log = logging.getLogger(__name__)


class Dispatcher:
    """One thread that looks every `interval` seconds, and at once after `wake`.

    Whatever fails is reported once, counted, and tried again at the next look; nothing is dropped before its
    expiry.
    """

    def __init__(self, ledger: Ledger, policy_sha256: str, interval: float) -> None:
        self.epoch: int | None = None
        """Fencing number of this start; None until journal and control folder have been reconciled."""
        self._ledger = ledger
        self._policy_sha256 = policy_sha256
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

    def wake(self) -> None:
        """Look now: something was committed."""
        self._wake.set()

    def problems(self) -> list[str]:
        """Return what stands in the way of any command; a run whose folder is missing does not."""
        return [text for name, text in self._problems.all().items() if not name.startswith("run ")]

    def tick(self) -> None:
        """Look once: decide again what has cooled down, take in answers, write commands.

        Raises:
            ControllerError: the journal or the control folder is not usable.
        """
        if self.epoch is None:
            self._reconcile()
        if self._ledger.journal.problem is not None:
            self._ledger.journal.probe()
        self._let_time_pass()
        waiting: dict[str, list[CommandRecord]] = {
            run: [] for run, held in self._held.items() if held.content
        }
        for command in self._ledger.journal.read(_open_commands):
            waiting.setdefault(command.run, []).append(command)
        for run, commands in waiting.items():
            self._serve(run, commands)

    def look(self) -> None:
        """Do what `tick` does; what stands in its way is reported and tried again at the next look."""
        try:
            self.tick()
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
            self.look()
        self.look()

    # --- start ----------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Open the journal, take a new epoch, and learn what the command files hold."""
        self._ledger.journal.open()
        names = runs.list_runs(self._ledger.control_dir)

        def begin(session: Session) -> int:
            journaled = session.scalar(select(func.max(StartRecord.epoch))) or 0
            epoch = 1 + max(journaled, runs.highest_epoch(self._ledger.control_dir))
            session.add(
                StartRecord(
                    epoch=epoch,
                    at=self._ledger.now(),
                    schema_version=SCHEMA_VERSION,
                    policy_sha256=self._policy_sha256,
                )
            )
            return epoch

        epoch = self._ledger.journal.write(begin)
        for run in names:
            signature = signature_of(commands_path(self._ledger.control_dir, run))
            found = self._inspect_commands(run)
            if found is not None and signature is not None:
                content = tuple((command.id, command.seq) for command in found.commands)
                held = Held(found.epoch, content, signature[0] / 1e9, signature)
                self._adopt(run, found.commands, held)
                self._held[run] = held
        self.epoch = epoch
        log.info("reconciled: epoch %d, %d runs in %s", epoch, len(names), self._ledger.control_dir)

    def _adopt(self, run: str, commands: Sequence[Command], held: Held) -> None:
        """Take commands into the journal that only the file knows: a lost journal breaks no promise."""

        def adopt(unit: Unit) -> list[str]:
            known = select(CommandRecord.id, CommandRecord.seq).where(CommandRecord.run == run)
            rows = unit.session.execute(known).all()
            ids, numbers = {row.id for row in rows}, {row.seq for row in rows}
            foreign = []
            for command in commands:
                if command.id in ids:
                    continue
                if command.seq in numbers:
                    foreign.append(command.id)
                else:
                    orders.adopt(unit, run, command, epoch=held.epoch, at=held.at)
            return foreign

        for command_id in self._ledger.change(adopt):
            self._ledger.metrics.file_error("commands", "foreign")
            log.error("run %s: commands.json holds command %r under a number of another", run, command_id)

    # --- what only time decides -----------------------------------------------------------------------------

    def _let_time_pass(self) -> None:
        now = self._ledger.now()
        cooled = select(EpisodeRecord.id).where(
            EpisodeRecord.retry_at <= now, EpisodeRecord.resolved_at.is_(None)
        )
        unapproved = select(CommandRecord).where(
            CommandRecord.state == "awaiting_approval", CommandRecord.expires_at <= now
        )
        if self._ledger.journal.read(lambda session: session.scalar(cooled.limit(1))) is not None:
            self._ledger.note(self._ledger.change(intake.reconsider))
        if self._ledger.journal.read(lambda session: session.scalar(unapproved.limit(1))) is None:
            return

        def expire(unit: Unit) -> None:
            for command in unit.session.scalars(unapproved).all():
                orders.finish(unit, command, "expired", at=now, detail="nobody approved it in time.")

        self._ledger.change(expire)

    # --- one run --------------------------------------------------------------------------------------------

    def _serve(self, run: str, commands: Sequence[CommandRecord]) -> None:
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

        def store(unit: Unit) -> None:
            for command in _still_open(unit.session, run):
                outcome = answers.outcomes.get(command.id)
                if outcome is not None:
                    detail = storable(outcome.detail)
                    orders.finish(
                        unit, command, outcome.result, at=outcome.at, step=outcome.step, detail=detail
                    )
                    unit.session.add(
                        AnswerRecord(
                            command_id=command.id,
                            read_at=unit.now,
                            session=storable(status.session),
                            result=outcome.result,
                            step=outcome.step,
                            at=outcome.at,
                            detail=detail,
                        )
                    )
                elif command.id in answers.displaced:
                    orders.renumber(unit, command)

        if answers.outcomes or answers.displaced:
            self._ledger.change(store)
            commands = self._reload(run)
        self._statuses[run] = signature
        return commands

    def _expire(self, run: str, commands: Sequence[CommandRecord]) -> Sequence[CommandRecord]:
        """End what nobody can or will carry out any more and return what is still open."""
        now = self._ledger.now()
        held = self._held.get(run)
        late: dict[str, str] = {}
        for command in commands:
            if (
                command.state == "pending"
                and command.expires_at <= now
                and not (held and held.holds(command))
            ):
                cause = self._problems.get(f"run {run} commands.json") or "the controller was not running."
                late[command.id] = f"it could not be written before it expired: {cause}"
            elif command.state == "written" and _grace_end(command) <= now:
                late[command.id] = "the trainer has not answered, neither in time nor as long again."
        if not late:
            return commands

        def expire(unit: Unit) -> None:
            for command in _still_open(unit.session, run):
                if command.id in late:
                    orders.finish(unit, command, "expired", at=now, detail=late[command.id])

        self._ledger.change(expire)
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
        at = self._ledger.now()
        try:
            write_control_file(
                path,
                CommandFile(run=run, epoch=self.epoch, commands=tuple(on_the_wire(one) for one in commands)),
            )
        except ControlFileError as error:
            reason = failure_reason(error.__cause__)
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

        def mark(unit: Unit) -> None:
            for command in _still_open(unit.session, run):
                if command.state == "pending" and held.holds(command):
                    orders.mark_written(unit, command, epoch=held.epoch, at=held.at)

        self._ledger.change(mark)
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
        return self._ledger.journal.read(lambda session: _still_open(session, run))


def _open_commands(session: Session) -> Sequence[CommandRecord]:
    return session.scalars(
        select(CommandRecord)
        .where(CommandRecord.state.in_(OPEN_STATES))
        .order_by(CommandRecord.run, CommandRecord.seq)
    ).all()


def _still_open(session: Session, run: str) -> Sequence[CommandRecord]:
    return session.scalars(
        select(CommandRecord)
        .where(CommandRecord.run == run, CommandRecord.state.in_(OPEN_STATES))
        .order_by(CommandRecord.seq)
    ).all()


def _grace_end(command: CommandRecord) -> float:
    assert command.issued_at is not None
    return command.expires_at + (command.expires_at - command.issued_at)
