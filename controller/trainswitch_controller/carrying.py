"""Carries commands of runs to ``commands.json``, and their trainers' answers to the journal, in one term."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from trainswitch.errors import ControlFileError
from trainswitch.intervention.control_file import (
    CommandFile,
    commands_path,
    status_path,
    write_control_file,
)
from trainswitch.intervention.rights import check_folder
from trainswitch_controller import open_commands, runs
from trainswitch_controller.acknowledge import match
from trainswitch_controller.held import Held, Signature, content_of, failure_reason, on_the_wire, signature_of
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.problems import Problems
from trainswitch_controller.records import CommandRecord
from trainswitch_controller.term import adopt, change_in_term
from trainswitch_controller.unit import Unit

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Carrier:
    """What a controller does with the files of runs while it leads, and what it knows of them.

    It is made anew for each term: in between, another controller may have written. What fails is reported to
    `problems` and tried again the next time; nothing is dropped before its expiry.
    """

    def __init__(self, ledger: Ledger, epoch: int, problems: Problems, stay: Callable[[], None]) -> None:
        """Carry for `ledger` under `epoch`; `stay` raises if this controller leads no more."""
        self.epoch = epoch
        self._ledger = ledger
        self._problems = problems
        self._stay = stay
        self._held: dict[str, Held] = {}
        self._statuses: dict[str, Signature] = {}
        self._fenced: set[str] = set()

    def take_over(self, run: str) -> None:
        """Learn what the run's file holds; what only the file knows is taken into the journal.

        Raises:
            LeadershipLost: this controller leads no more.
            JournalError: that could not be committed.
        """
        self._stay()
        signature = signature_of(commands_path(self._ledger.control_dir.path, run))
        found = self._inspect_commands(run)
        if found is not None and signature is not None:
            content = tuple((command.id, command.seq) for command in found.commands)
            held = Held(found.epoch, content, signature[0] / 1e9, signature)
            adopt(self._ledger, run, found.commands, held)
            self._held[run] = held

    def loaded(self) -> list[str]:
        """Return the runs whose files hold commands."""
        return [run for run, held in self._held.items() if held.content]

    def serve(self, run: str, commands: Sequence[CommandRecord]) -> None:
        """Take in the answers to `commands`, all open ones of `run`, and have its file hold what is left.

        Raises:
            LeadershipLost: this controller leads no more.
            JournalError: the journal is not usable.
        """
        self._stay()
        held = self._held.get(run)
        if (
            held is not None
            and signature_of(commands_path(self._ledger.control_dir.path, run)) != held.signature
        ):
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
        signature = signature_of(status_path(self._ledger.control_dir.path, run))
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
        path = commands_path(self._ledger.control_dir.path, run)
        self._stay()
        at = self._ledger.now()
        keys = self._ledger.control_dir.keys
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

    def _change(self, work: Callable[[Unit], Result]) -> Result:
        """Change the journal, unless another controller has begun a later term."""
        return change_in_term(self._ledger, self.epoch, work)
