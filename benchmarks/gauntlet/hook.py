"""What people hang on Alertmanager for trainers that no command reaches: a restart by their launcher."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from typing import Any

import requests

from benchmarks.gauntlet.launcher import Launcher
from trainswitch_controller.cli.errors import StackError

RESTARTING = frozenset({"TrainHung", "TrainCollectiveStuck", "TrainTargetDown"})
"""Critical alerts that name no action, because a hung or stopped process carries none out."""
_STARTING_S = 45.0
"""A process that has just been started is given so long to be there."""
_TIMEOUT_S = 10.0


class RestartHook:
    """Restarts runs whose alerts say that only this can help; asks for what a webhook would be sent."""

    def __init__(self, alertmanager: str) -> None:
        self._url = f"{alertmanager}/api/v2/alerts"
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy cannot reach this machine's loopback

    def look(self, launchers: Mapping[str, Launcher]) -> None:
        """Ask Alertmanager, and restart what it names.

        Raises:
            StackError: Alertmanager does not answer.
        """
        for alert in self._alerts():
            labels = alert["labels"]
            launcher = launchers.get(labels.get("run", ""))
            if launcher is None or launcher.over or labels["alertname"] not in RESTARTING:
                continue
            begun = dt.datetime.fromisoformat(alert["startsAt"].replace("Z", "+00:00")).timestamp()
            if begun > launcher.started_at and time.time() > launcher.started_at + _STARTING_S:
                launcher.restart(labels["alertname"])

    def _alerts(self) -> list[dict[str, Any]]:
        query = {"active": "true", "inhibited": "false", "filter": 'severity="critical"'}
        try:
            response = self._session.get(self._url, params=query, timeout=_TIMEOUT_S)
            response.raise_for_status()
            alerts: list[dict[str, Any]] = response.json()
        except requests.RequestException as error:
            raise StackError(f"{self._url} does not answer as it should: {error}.") from error
        return alerts
