"""A change of the journal as the rest of the controller makes it: committed, then counted and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from trainswitch_controller.control_folder import ControlFolder
from trainswitch_controller.intake import Judged
from trainswitch_controller.journal import Journal
from trainswitch_controller.metrics import Metrics
from trainswitch_controller.policy import Policy
from trainswitch_controller.records import RecoveryRecord
from trainswitch_controller.unit import Unit

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Ledger:
    """The journal together with what every change of it needs; `now` returns Unix seconds."""

    def __init__(
        self,
        journal: Journal,
        policy: Policy,
        control_dir: ControlFolder,
        metrics: Metrics,
        now: Callable[[], float],
    ) -> None:
        self.journal = journal
        self.policy = policy
        self.control_dir = control_dir
        self.metrics = metrics
        self.now = now
        self.on_recoveries: Callable[[Sequence[RecoveryRecord]], None] | None = None
        """Told of what came of interventions, once it is committed."""

    def change(self, work: Callable[[Unit], Result]) -> Result:
        """Run `work` in one transaction; count and log the states that commands entered once it is committed.

        Raises:
            JournalError: the transaction could not be committed; nothing of it is stored.
        """

        def attempt(session: Session) -> tuple[Unit, Result]:
            unit = Unit(session, self.policy, self.control_dir, self.now())
            return unit, work(unit)

        unit, result = self.journal.write(attempt)
        self.metrics.commands(unit.changes)
        self.metrics.recoveries(unit.recoveries)
        if self.on_recoveries is not None:
            self.on_recoveries(unit.recoveries)
        for command, state in unit.changes:
            log.info(
                "command %s run=%s seq=%s action=%s params=%s state=%s%s",
                command.id,
                command.run,
                command.seq,
                command.action,
                command.params,
                state,
                f" detail={command.detail!r}" if command.detail else "",
            )
        for recovery in unit.recoveries:
            log.info(
                "command %s: its alert %s %s after %.1f s (steps: %s)",
                recovery.command_id,
                recovery.alertname,
                recovery.result,
                recovery.seconds,
                recovery.steps,
            )
        return result

    def note(self, judged: Sequence[Judged]) -> None:
        """Count and log what was decided about alerts."""
        self.metrics.alerts(judged, self.now())
        for one in judged:
            log.info(
                "alert %r run=%r outcome=%s command=%s: %s",
                one.alertname,
                one.run,
                one.outcome,
                one.command_id,
                one.reason,
            )
