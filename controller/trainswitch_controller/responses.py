"""What the controller did about each alert of each run, as a metric that notifications are made from."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from trainswitch_controller.decide import Outcome
from trainswitch_controller.intake import Judged
from trainswitch_controller.records import CommandRecord, CommandState, DecisionRecord

NAME = "trainswitch_controller_response_timestamp_seconds"
BUDGET_NAME = "trainswitch_controller_budget_exhausted_timestamp_seconds"
KEPT_S = 86400.0
"""How long the response to an alert is exported after it last changed."""
RESPONSES: frozenset[Outcome] = frozenset(
    {"acted", "observed", "awaiting_approval", "cooldown", "budget", "stale"}
)
"""Outcomes that say something new; the others leave the last response standing."""


@dataclasses.dataclass(frozen=True)
class _Decided:
    at: float
    outcome: str
    action: str
    command_id: str | None


@dataclasses.dataclass(frozen=True)
class _Entered:
    at: float
    state: str


class Responses(Collector):
    """The newest response to each (run, alert); `now` returns Unix seconds.

    A decision and the states of its command are noted by different threads, in any order.
    """

    def __init__(self, alertnames: Collection[str], now: Callable[[], float]) -> None:
        """Answer for the alerts in `alertnames`; others are not ours to bound, and cause nothing."""
        self._alertnames = alertnames
        self._now = now
        self._lock = threading.Lock()
        self._decided: dict[tuple[str, str], _Decided] = {}
        self._entered: dict[str, _Entered] = {}
        self._spent: dict[str, float] = {}
        """Run → when a budget last stood in the way; whatever else was decided since, that stands."""
        self._newest = 0
        """Id of the newest decision that was taken from the journal."""
        self.speaks = True
        """Of several controllers only the leader knows what became of commands."""

    def decided(self, judged: Iterable[Judged], at: float) -> None:
        """Note what was decided about alerts at `at`."""
        with self._lock:
            for one in judged:
                if one.outcome in RESPONSES and one.run is not None and one.alertname in self._alertnames:
                    decided = _Decided(at, one.outcome, one.action or "", one.command_id)
                    self._decided[one.run, one.alertname] = decided
                if one.budget_spent and one.run is not None:
                    self._spent[one.run] = at

    def entered(self, changes: Iterable[tuple[CommandRecord, CommandState]]) -> None:
        """Note the states that commands entered."""
        with self._lock:
            for command, state in changes:
                if command.alertname is not None:
                    self._entered[command.id] = _Entered(_entered_at(command, state), state)

    def restore(self, session: Session) -> None:
        """Take the responses of the last `KEPT_S` from the journal."""
        self._take_in(session, DecisionRecord.at > self._now() - KEPT_S)

    def catch_up(self, session: Session) -> None:
        """Take what was decided since the last call or `restore`, by this controller or by another one.

        Writers are one at a time, so a decision that is committed later has a higher id.
        """
        self._take_in(session, DecisionRecord.id > self._newest)

    def _take_in(self, session: Session, since: ColumnElement[bool]) -> None:
        newest = session.scalar(select(func.max(DecisionRecord.id))) or 0
        if newest == self._newest:
            return
        last = (
            select(func.max(DecisionRecord.id))
            .where(
                since,
                DecisionRecord.outcome.in_(RESPONSES),
                DecisionRecord.alertname.in_(self._alertnames),
                DecisionRecord.run.is_not(None),
            )
            .group_by(DecisionRecord.run, DecisionRecord.alertname)
        )
        for decision in session.scalars(select(DecisionRecord).where(DecisionRecord.id.in_(last))):
            assert decision.run is not None  # by the condition above
            decided = _Decided(decision.at, decision.outcome, decision.action or "", decision.command_id)
            command = session.get(CommandRecord, decision.command_id) if decision.command_id else None
            self.entered([(command, command.state)] if command else [])
            with self._lock:
                known = self._decided.get((decision.run, decision.alertname))
                if known is None or known.at < decided.at:
                    self._decided[decision.run, decision.alertname] = decided
        self._restore_spent(session)
        self._newest = newest

    def _restore_spent(self, session: Session) -> None:
        horizon = self._now() - KEPT_S
        unanswered = (
            select(DecisionRecord.run, func.max(DecisionRecord.at))
            .where(DecisionRecord.at > horizon, DecisionRecord.outcome == "budget")
            .group_by(DecisionRecord.run)
        )
        proposed = (
            select(CommandRecord.run, func.max(CommandRecord.created_at))
            .where(CommandRecord.created_at > horizon, CommandRecord.cause == "budget")
            .group_by(CommandRecord.run)
        )
        for run, at in (*session.execute(unanswered), *session.execute(proposed)):
            with self._lock:
                self._spent[run] = max(at, self._spent.get(run, at))

    def collect(self) -> Iterable[Metric]:
        """Yield the metric, for the client library."""
        family = GaugeMetricFamily(
            NAME,
            "When the controller's newest response to this alert of the run entered this state; without a "
            "command the state is empty. Kept for a day.",
            labels=["run", "alertname", "outcome", "action", "state"],
        )
        spent = GaugeMetricFamily(
            BUDGET_NAME,
            "When a budget of interventions, the run's or that of all runs, last stood in the way of an "
            "answer to an alert of the run. Kept for a day.",
            labels=["run"],
        )
        with self._lock:
            self._forget()  # by who follows as well: it learns of states, too
            if self.speaks:
                self._tell(family, spent)
        yield family
        yield spent

    def _tell(self, family: GaugeMetricFamily, spent: GaugeMetricFamily) -> None:
        for run, at in sorted(self._spent.items()):
            spent.add_metric([run], at)
        for (run, alertname), decided in sorted(self._decided.items()):
            entered = self._entered.get(decided.command_id or "")
            labels = [run, alertname, decided.outcome, decided.action, entered.state if entered else ""]
            family.add_metric(labels, entered.at if entered else decided.at)

    def _forget(self) -> None:
        """Drop what is too old."""
        horizon = self._now() - KEPT_S
        entered = {key: one for key, one in self._entered.items() if one.at > horizon}
        self._decided = {
            key: one
            for key, one in self._decided.items()
            if one.at > horizon or (one.command_id or "") in entered
        }
        self._entered = entered
        self._spent = {run: at for run, at in self._spent.items() if at > horizon}


def _entered_at(command: CommandRecord, state: CommandState) -> float:
    """Return when `command` entered `state`, in Unix seconds."""
    if state == "awaiting_approval":
        return command.created_at
    if state == "pending":
        return command.issued_at or command.created_at
    if state == "written":
        return command.written_at or command.created_at
    return command.finished_at or command.created_at
