"""The controller's own metrics; every label set that can be known exists from the start."""

from __future__ import annotations

from collections.abc import Callable, Collection

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from trainswitch.errors import CONTROL_FILE_REASONS
from trainswitch.intervention.commands import ACTIONS
from trainswitch.version import version
from trainswitch_controller.decide import OUTCOMES
from trainswitch_controller.intake import Judged
from trainswitch_controller.onset.exported import Exported
from trainswitch_controller.outcome.exported import Outcomes
from trainswitch_controller.policy import WATCHDOG
from trainswitch_controller.records import (
    COMMAND_STATES,
    RECOVERY_RESULTS,
    CommandRecord,
    CommandState,
    RecoveryRecord,
)
from trainswitch_controller.responses import Responses

WEBHOOK_CODES = ("200", "400", "401", "403", "413", "422", "429", "500", "503")
REFUSALS = ("unauthorized", "forbidden", "too_many_failures", "too_many_orders", "slow", "connections")
"""Why a caller is turned away, or cut off."""

WRITE_FAILURE_REASONS = (
    *("missing_folder", "no_space", "read_only", "fenced", "permissions", "signature", "other"),
)
OTHER = "other"
"""Label value of every alert that the policy does not name: alert names are not ours to bound otherwise."""

AGE_BUCKETS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
RECOVERY_BUCKETS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 21600.0, 86400.0)


class Metrics:
    """Every metric of ``GET /metrics``.

    `alertnames` are those of the policy, `relays` the names of the relays; `now` returns Unix seconds.
    """

    def __init__(
        self, alertnames: Collection[str], now: Callable[[], float], *, relays: Collection[str] = ()
    ) -> None:
        # Otherwise each counter brings a second series, its creation time, that nobody reads.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._alertnames = {*alertnames, WATCHDOG}
        prefix = "trainswitch_controller_"
        self._webhooks = Counter(
            f"{prefix}webhooks_total", "Webhook requests by HTTP status.", ["code"], registry=self.registry
        )
        self._alerts = Counter(
            f"{prefix}alerts_total",
            "Alerts by what was decided about them; outcome truncated counts what Alertmanager left out.",
            ["alertname", "outcome"],
            registry=self.registry,
        )
        self._commands = Counter(
            f"{prefix}commands_total",
            "Commands by the states they entered.",
            ["action", "state"],
            registry=self.registry,
        )
        self._age = Histogram(
            f"{prefix}alert_age_seconds",
            "Time from startsAt of a firing alert to the first decision about its episode.",
            buckets=AGE_BUCKETS,
            registry=self.registry,
        )
        self._write_failures = Counter(
            f"{prefix}write_failures_total",
            "Failures to write commands.json; each is tried again.",
            ["reason"],
            registry=self.registry,
        )
        self._file_errors = Counter(
            f"{prefix}control_file_errors_total",
            "Control files that could not be used as found; displaced: an answer to a foreign command.",
            ["file", "reason"],
            registry=self.registry,
        )
        self.watchdog = Gauge(
            f"{prefix}watchdog_timestamp_seconds",
            "When the always-firing Watchdog alert last arrived; 0 before the first time.",
            registry=self.registry,
        )
        self._leader = Gauge(
            f"{prefix}leader",
            "1 while this controller writes the commands; 0 while another one does, or before it has begun.",
            registry=self.registry,
        )
        self._command_time = Gauge(
            f"{prefix}command_timestamp_seconds",
            "When the newest command of this action was applied to the run.",
            ["run", "action"],
            registry=self.registry,
        )
        self._recoveries = Counter(
            f"{prefix}recoveries_total",
            "What came of interventions that were applied: their alert resolved, returned, or lasted until "
            "the next rung was taken (escalated).",
            ["alertname", "result"],
            registry=self.registry,
        )
        self._recovery_time = Histogram(
            f"{prefix}recovery_seconds",
            "Time from the moment at which an intervention was applied until its alert had resolved.",
            ["action"],
            buckets=RECOVERY_BUCKETS,
            registry=self.registry,
        )
        self._relayed = Counter(
            f"{prefix}relayed_total",
            "Webhooks that relays passed on to their gateways, or failed to.",
            ["relay", "result"],
            registry=self.registry,
        )
        self._refused = Counter(
            f"{prefix}refused_requests_total",
            "Requests and connections that were turned away or cut off.",
            ["reason"],
            registry=self.registry,
        )
        for relay in relays:
            for result in ("sent", "failed"):
                self._relayed.labels(relay=relay, result=result)
        self.responses = Responses(alertnames, now)
        self.registry.register(self.responses)
        self.onset = Exported(self.registry, alertnames, now)
        self.outcomes = Outcomes(self.registry, ACTIONS, OTHER)
        build = Gauge(
            f"{prefix}build_info", "1; the label says which version.", ["version"], registry=self.registry
        )
        build.labels(version=version()).set(1)
        self._initialise()

    def lead(self, *, leads: bool) -> None:
        """Note whether this controller leads; who follows does not speak of responses and commands."""
        self._leader.set(leads)
        self.responses.speaks = leads
        if not leads:
            self._command_time.clear()

    def webhook(self, code: int) -> None:
        """Count one answered webhook request."""
        self._webhooks.labels(code=str(code)).inc()

    def alerts(self, judged: Collection[Judged], now: float) -> None:
        """Count what was decided about alerts, and note it as the response to them."""
        self.responses.decided(judged, now)
        for one in judged:
            name = one.alertname if one.alertname in self._alertnames else OTHER
            self._alerts.labels(alertname=name, outcome=one.outcome).inc()
            if one.new_episode_age is not None:
                self._age.observe(one.new_episode_age)
            if one.outcome == "watchdog":
                self.watchdog.set(now)

    def truncated(self, count: int) -> None:
        """Count alerts that Alertmanager left out of a delivery."""
        self._alerts.labels(alertname=OTHER, outcome="truncated").inc(count)

    def commands(self, changes: Collection[tuple[CommandRecord, CommandState]]) -> None:
        """Count the states that commands entered, and note them, and when one was applied."""
        self.responses.entered(changes)
        for command, state in changes:
            action = command.action if command.action in ACTIONS else OTHER
            self._commands.labels(action=action, state=state).inc()
            if state == "applied" and command.finished_at is not None:
                self.applied(command.run, command.action, command.finished_at)

    def applied(self, run: str, action: str, at: float) -> None:
        """Note when `action` was last applied to `run`."""
        self._command_time.labels(run=run, action=action).set(at)

    def recoveries(self, found: Collection[RecoveryRecord]) -> None:
        """Count what came of interventions."""
        for one in found:
            name = one.alertname if one.alertname in self._alertnames else OTHER
            self._recoveries.labels(alertname=name, result=one.result).inc()
            if one.result == "resolved":
                action = one.action if one.action in ACTIONS else OTHER
                self._recovery_time.labels(action=action).observe(one.seconds)

    def relayed(self, relay: str, result: str) -> None:
        """Count one webhook that a relay passed on (``sent``), or could not (``failed``)."""
        self._relayed.labels(relay=relay, result=result).inc()

    def refused(self, reason: str) -> None:
        """Count one caller that was turned away; `reason` is one of `REFUSALS`."""
        self._refused.labels(reason=reason).inc()

    def write_failure(self, reason: str) -> None:
        """Count one failure to write a ``commands.json``."""
        self._write_failures.labels(reason=reason).inc()

    def file_error(self, file: str, reason: str) -> None:
        """Count one control file (``commands`` or ``status``) that could not be used as it was found."""
        self._file_errors.labels(file=file, reason=reason).inc()

    def _initialise(self) -> None:
        for reason in REFUSALS:
            self._refused.labels(reason=reason)
        for code in WEBHOOK_CODES:
            self._webhooks.labels(code=code)
        for name in (*self._alertnames, OTHER):
            for outcome in OUTCOMES:
                self._alerts.labels(alertname=name, outcome=outcome)
            for result in RECOVERY_RESULTS:
                self._recoveries.labels(alertname=name, result=result)
        self._alerts.labels(alertname=OTHER, outcome="truncated")
        for action in ACTIONS:
            self._recovery_time.labels(action=action)
            for state in COMMAND_STATES:
                self._commands.labels(action=action, state=state)
        for reason in WRITE_FAILURE_REASONS:
            self._write_failures.labels(reason=reason)
        for reason in CONTROL_FILE_REASONS:
            for file in ("commands", "status"):
                self._file_errors.labels(file=file, reason=reason)
        self._file_errors.labels(file="status", reason="displaced")
