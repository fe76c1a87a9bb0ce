"""What the parts of the stack say of a run once it is over, asked of the part that owns it."""

from __future__ import annotations

import dataclasses
from typing import Any

import requests

from trainswitch.intervention.control_file import read_status, status_path
from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.stack import Stack

_TIMEOUT_S = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was seen of one run."""

    alerts: tuple[tuple[float, str], ...] = ()
    """When (Unix seconds) which warning or critical alert began to fire, in order."""
    commands: tuple[dict[str, Any], ...] = ()
    """What the controller commanded because of alerts, oldest first, as the journal has it."""

    def first_alert(self, since: float) -> tuple[float, str] | None:
        """Return the first alert that began to fire at `since` or later."""
        return next((alert for alert in self.alerts if alert[0] >= since), None)

    def applied(self, since: float) -> list[dict[str, Any]]:
        """Return the commands that the trainer has carried out since a time."""
        return [row for row in self.commands if row["state"] == "applied" and row["finished_at"] >= since]


class Witness:
    """Asks a running stack."""

    def __init__(self, stack: Stack, client: ControllerClient) -> None:
        self._stack = stack
        self._client = client
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy cannot reach this machine's loopback

    def paused(self, run: str) -> bool:
        """Return whether the run's trainer says that it is paused."""
        status = read_status(status_path(self._stack.home / "control", run), run)
        return status is not None and status.state == "paused"

    def evidence(self, run: str) -> Evidence:
        """Return what was seen of a run.

        Raises:
            StackError: Prometheus does not answer.
            ControllerUnreachable: the controller does not.
        """
        commands = [row for row in reversed(self._client.commands(run, 1000)) if row["source"] == "alert"]
        return Evidence(alerts=tuple(sorted(self._alerts(run))), commands=tuple(commands))

    def _alerts(self, run: str) -> list[tuple[float, str]]:
        query = f'ALERTS{{run="{run}",alertstate="firing",severity=~"warning|critical"}}[1h]'
        url = f"{self._stack.prometheus}/api/v1/query"
        try:
            response = self._session.get(url, params={"query": query}, timeout=_TIMEOUT_S)
            response.raise_for_status()
            result = response.json()["data"]["result"]
        except requests.RequestException as error:
            raise StackError(f"{url} does not answer as it should: {error}.") from error
        return [
            (begun, f"{series['metric']['alertname']} ({series['metric']['severity']})")
            for series in result
            for begun in _beginnings([float(at) for at, _ in series["values"]])
        ]


def _beginnings(times: list[float], gap: float = 65.0) -> list[float]:
    """Return the times that follow none within `gap` seconds; rule groups are up to a minute apart."""
    return [at for number, at in enumerate(times) if number == 0 or at - times[number - 1] > gap]
