"""The controller as one object, without HTTP: built from its settings, started, asked, stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from trainswitch.intervention.commands import check_run_name
from trainswitch_controller import intake, orders, runs
from trainswitch_controller.alerts import Webhook
from trainswitch_controller.auth import Access, Role, TokenFile
from trainswitch_controller.control_folder import open_control_folder
from trainswitch_controller.dispatch import Dispatcher
from trainswitch_controller.engine import claim, leadership
from trainswitch_controller.errors import ControllerError, NotFound, NotReady
from trainswitch_controller.explain import Explanation, explain
from trainswitch_controller.explain_run import explain_run
from trainswitch_controller.journal import Journal
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.metrics import Metrics
from trainswitch_controller.onset.analyst import open_analyst
from trainswitch_controller.outcome.measuring import open_measuring
from trainswitch_controller.policy import load_policy
from trainswitch_controller.records import CommandRecord, DecisionRecord
from trainswitch_controller.relays import Gateway, load_relays
from trainswitch_controller.settings import Settings
from trainswitch_controller.unit import Unit
from trainswitch_controller.validation import Strict, Text

log = logging.getLogger(__name__)

_PATIENCE_S = 3.0
"""How long a leader of several controllers may be silent before another one takes its place."""
_RECENT_S = 86400.0
"""How far back applied commands are put into the metrics again after a start."""


class Order(Strict):
    """What an operator asks for."""

    action: str = Field(max_length=128)
    params: dict[str, Any] = Field(default={})
    reason: Text = Field(default="", max_length=orders.MAX_REASON)


class Rejection(Strict):
    """What an operator says to a command that is not wanted."""

    reason: Text = Field(default="", max_length=orders.MAX_REASON)


class Controller:
    """One controller; `now` returns Unix seconds.

    Raises:
        ControllerError: policy, tokens or journal_url are not usable.
    """

    def __init__(self, settings: Settings, now: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.control_dir = open_control_folder(settings.control_dir, settings.signing_key_file)
        policy, policy_sha256 = load_policy(settings.policy)
        relays = load_relays(settings.relays) if settings.relays is not None else {}
        self.gateways = {name: Gateway(name, relay) for name, relay in relays.items()}
        self.metrics = Metrics(policy.alerts, now, relays=self.gateways)
        self.access = _access(settings, self.metrics)
        self.journal = Journal(settings.journal_url)
        self._ledger = Ledger(self.journal, policy, self.control_dir, self.metrics, now)
        self._dispatcher = Dispatcher(
            self._ledger,
            policy_sha256,
            settings.poll_interval_s,
            leadership(settings.journal_url, max(_PATIENCE_S, 4 * settings.poll_interval_s)),
            self._know_the_past,
        )
        self._analyst = open_analyst(settings, self._ledger)
        self._measuring = open_measuring(settings, self._ledger)

    def claim(self) -> None:
        """Keep a second controller off a journal that only one can use.

        Raises:
            JournalError: another controller uses it already.
        """
        self._claim = claim(self.settings.journal_url)

    def start(self) -> None:
        """Reconcile journal and files, and begin to dispatch."""
        self._dispatcher.look()
        if self._analyst is not None:
            self._analyst.start()
        if self._measuring is not None:
            self._measuring.start()
        self._dispatcher.start()

    def stop(self) -> None:
        """Write what was committed, then close the journal."""
        if self._analyst is not None:
            self._analyst.stop()
        self._dispatcher.stop()
        if self._measuring is not None:
            self._measuring.stop()
        self.journal.close()

    def deliver(self, webhook: Webhook) -> intake.Receipt:
        """Commit one delivery with its episodes, decisions and commands, and have the commands written.

        Raises:
            NotReady: journal and control folder have not been reconciled yet.
            JournalError: it could not be committed; nothing of it is stored.
        """
        self._require_ready()
        if self._analyst is not None:
            self._analyst.prepare(webhook.alerts)
        receipt = self._ledger.change(lambda unit: intake.receive(unit, webhook))
        self._dispatcher.wake()
        self._ledger.note(receipt.judged)
        if receipt.truncated_alerts:
            self.metrics.truncated(receipt.truncated_alerts)
            log.error(
                "Alertmanager left %d alerts out of delivery %d: remove max_alerts from its webhook_config.",
                receipt.truncated_alerts,
                receipt.delivery,
            )
        return receipt

    def relay(self, name: str, webhook: Webhook) -> None:
        """Pass `webhook` on as a text to the gateway of the relay `name`.

        Raises:
            NotFound: there is no such relay.
            ControllerError: see `Gateway.send`.
        """
        gateway = self.gateways.get(name)
        if gateway is None:
            raise NotFound(f"there is no relay {name[:80]!r}: name it in the file of relays (--relays).")
        try:
            gateway.send(webhook)
        except ControllerError:
            self.metrics.relayed(name, "failed")
            raise
        self.metrics.relayed(name, "sent")

    def order(self, run: str, order: Order) -> CommandRecord:
        """Commit an operator's command and have it written.

        Raises:
            RunNameError: the run name is not allowed.
            ControllerError: see `orders.order`; or the journal cannot commit.
        """
        check_run_name(run)
        self._require_ready()
        command = self._ledger.change(
            lambda unit: orders.order(unit, run, order.action, order.params, order.reason)
        )
        self._dispatcher.wake()
        return command

    def approve(self, command_id: str) -> CommandRecord:
        """Commit an operator's consent and have the command written.

        Raises:
            ControllerError: see `orders.approve`; or the journal cannot commit.
        """
        self._require_ready()
        command = self._ledger.change(lambda unit: orders.approve(unit, command_id))
        self._dispatcher.wake()
        return command

    def reject(self, command_id: str, rejection: Rejection) -> CommandRecord:
        """Commit an operator's refusal of a command that awaits approval.

        Raises:
            ControllerError: see `orders.reject`; or the journal cannot commit.
        """
        self._require_ready()
        return self._ledger.change(lambda unit: orders.reject(unit, command_id, rejection.reason))

    def explain(self, alertname: str, run: str | None) -> Explanation:
        """Return what the policy would do now if `alertname` fired for `run`, and why.

        Raises:
            RunNameError: the run name is not allowed.
            ControllerError: the journal cannot be read, or is not ready.
        """
        if run is not None:
            check_run_name(run)
        self._require_ready()
        policy = self._ledger.policy
        if run is None:
            return explain(policy, alertname, self._ledger.now())
        return self.journal.read(
            lambda session: explain_run(
                Unit(session, policy, self.control_dir, self._ledger.now()), alertname, run
            )
        )

    def problems(self) -> list[str]:
        """Return why the controller cannot do its work at present, one sentence each; empty if it can."""
        found = [*self._dispatcher.problems()]
        if self.journal.problem is not None:
            found.append(self.journal.problem)
        checks: list[Callable[[], object]] = [
            self._require_ready,
            lambda: self.journal.read(lambda session: session.execute(select(1))),
            lambda: runs.list_runs(self.control_dir),
            self.access.check,
        ]
        for check in checks:
            try:
                check()
            except ControllerError as error:
                found.append(str(error))
        return list(dict.fromkeys(found))

    def _require_ready(self) -> None:
        if self._dispatcher.epoch is None and not self._dispatcher.follows:
            raise NotReady("the controller has not reconciled its journal and control folder yet: try again.")

    def _know_the_past(self) -> None:
        try:
            self.journal.read(self._restore_metrics)
        except ControllerError as error:
            log.warning("metrics do not know what was before this controller led: %s", error)

    def _restore_metrics(self, session: Session) -> None:
        seen = session.scalar(select(func.max(DecisionRecord.at)).where(DecisionRecord.outcome == "watchdog"))
        self.metrics.watchdog.set(seen or 0.0)
        self.metrics.responses.restore(session)
        self.metrics.onset.restore(session)
        newest = (
            select(CommandRecord.run, CommandRecord.action, func.max(CommandRecord.finished_at))
            .where(
                CommandRecord.state == "applied", CommandRecord.finished_at > self._ledger.now() - _RECENT_S
            )
            .group_by(CommandRecord.run, CommandRecord.action)
        )
        for run, action, at in session.execute(newest):
            assert at is not None  # the condition above leaves none without
            self.metrics.applied(run, action, at)


def _access(settings: Settings, metrics: Metrics) -> Access:
    """Return who is let in, after a look at the token files.

    Raises:
        TokenError: one is not usable.
    """
    paths: dict[Role, Path | None] = {
        "alertmanager": settings.alertmanager_token_file,
        "operator": settings.operator_token_file,
        "viewer": settings.viewer_token_file,
    }
    access = Access(
        {role: TokenFile(path, role) for role, path in paths.items() if path is not None},
        metrics,
        failures_per_minute=settings.failures_per_minute,
        orders_per_minute=settings.orders_per_minute,
    )
    access.check()
    return access
