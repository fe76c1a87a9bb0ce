"""What each part of a running stack says about an alert, asked of the part that owns it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import requests

from trainswitch.intervention.commands import CommandOutcome
from trainswitch.intervention.control_file import StatusFile, read_status, status_path
from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.stack import Stack

_TIMEOUT_S = 10.0


@dataclasses.dataclass(kw_only=True)
class Timeline:
    """When a fault reached each part of the loop, in Unix seconds; None where it was not seen."""

    fault: float | None = None
    """The faulty step ended (trainer)."""
    first_sample: float | None = None
    """Prometheus took the first sample with the faulty step in it (Prometheus)."""
    firing: float | None = None
    """A critical alert began to fire (Prometheus)."""
    alertmanager: float | None = None
    """The alert began, as Alertmanager has it (Alertmanager)."""
    webhook: float | None = None
    """The webhook was in the journal (journal)."""
    written: float | None = None
    """commands.json held the command (journal)."""
    applied: float | None = None
    """The trainer had carried it out (status.json)."""

    def stages(self) -> dict[str, float | None]:
        """Return stage → Unix seconds, in the order in which they come."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def complete(self) -> bool:
        """Whether every stage was seen."""
        return None not in self.stages().values()

    def since_fault(self) -> dict[str, float | None]:
        """Return stage → seconds after the fault."""
        return {
            name: None if at is None or self.fault is None else round(at - self.fault, 3)
            for name, at in self.stages().items()
        }


class Evidence:
    """Asks Prometheus, Alertmanager, the journal and the status file about one run."""

    def __init__(self, stack: Stack, client: ControllerClient, run: str) -> None:
        self._stack = stack
        self._client = client
        self._run = run
        self._status = status_path(stack.home / "control", run)
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy cannot reach this machine's loopback
        self.timeline = Timeline()

    def status(self) -> StatusFile | None:
        """Return the run's status.json, or None while there is none."""
        return read_status(self._status, self._run)

    def loss(self) -> float | None:
        """Return the newest loss that Prometheus has."""
        found = self._query(f'train_loss{{run="{self._run}"}}')
        return float(found[0]["value"][1]) if found else None

    def commands(self, source: str) -> list[dict[str, Any]]:
        """Return the run's commands from `source` (``alert`` or ``operator``), oldest first."""
        rows = self._client.commands(self._run, 1000)
        return [row for row in reversed(rows) if row["source"] == source]

    def collect(self, fault_at: float, fault_step: int) -> Timeline:
        """Look once more for every stage that was not seen yet."""
        timeline = self.timeline
        timeline.fault = fault_at
        if timeline.first_sample is None:
            timeline.first_sample = self._first_sample("train_step", fault_at, fault_step)
        if timeline.firing is None:
            timeline.firing = self._first_sample(
                "ALERTS", fault_at, 1, matchers='alertstate="firing",severity="critical"'
            )
        if timeline.alertmanager is None:
            timeline.alertmanager = self._alertmanager()
        if timeline.webhook is None:
            timeline.webhook = self._first(self._client.episodes(self._run, 1000), "received_at", fault_at)
        if timeline.written is None or timeline.applied is None:
            commands = self.commands("alert")
            timeline.written = self._first(commands, "written_at", fault_at)
            outcome = self._outcome({row["id"] for row in commands})
            timeline.applied = outcome.at if outcome is not None else None
        return timeline

    def _outcome(self, identifiers: set[str]) -> CommandOutcome | None:
        status = self.status()
        results = status.results if status is not None else ()
        return next((r for r in results if r.id in identifiers and r.result == "applied"), None)

    @staticmethod
    def _first(rows: list[dict[str, Any]], key: str, after: float) -> float | None:
        return min((row[key] for row in rows if row.get(key) is not None and row[key] >= after), default=None)

    def _first_sample(self, metric: str, after: float, least: float, matchers: str = "") -> float | None:
        """Return the time of the first sample after `after` whose value is at least `least`."""
        selector = f'{metric}{{run="{self._run}"{"," + matchers if matchers else ""}}}[10m]'
        times = [
            float(at)
            for series in self._query(selector)
            for at, value in series["values"]
            if float(at) >= after and float(value) >= least
        ]
        return min(times, default=None)

    def _alertmanager(self) -> float | None:
        alerts = self._get(
            f"{self._stack.alertmanager}/api/v2/alerts",
            {"filter": [f'run="{self._run}"', 'severity="critical"']},
        )
        starts = [
            dt.datetime.fromisoformat(alert["startsAt"].replace("Z", "+00:00")).timestamp()
            for alert in alerts
            if any(receiver["name"] == "controller" for receiver in alert["receivers"])
        ]
        return min(starts, default=None)

    def _query(self, expression: str) -> list[dict[str, Any]]:
        answer = self._get(f"{self._stack.prometheus}/api/v1/query", {"query": expression})
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def _get(self, url: str, params: dict[str, Any]) -> Any:
        try:
            response = self._session.get(url, params=params, timeout=_TIMEOUT_S)
            response.raise_for_status()
            return response.json()
        except requests.RequestException as error:
            raise StackError(f"{url} does not answer as it should: {error}.") from error
