"""The storm itself: webhooks as Alertmanager sends them, one alert each, in an order drawn by a seed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random
from typing import Any

ALERTNAMES = ("TrainNonFinite", "TrainGradientExplosion", "TrainLossUnstable", "TrainLossSpike", "TrainHung")
"""The last one is not in the policy."""
_FIRST, _REPEATED = 0.6, 0.25
"""Shares of all deliveries: an episode's first, and one that says nothing new; the others resolve one."""
_LATER = 0.2
"""How long after its first an episode's next delivery comes at most, as a share of the whole storm."""


@dataclasses.dataclass(frozen=True)
class Episode:
    """One alert from its first firing on."""

    fingerprint: str
    run: str
    labels: dict[str, str]
    started: str


@dataclasses.dataclass(frozen=True)
class Delivery:
    """One webhook."""

    key: str
    """Its ``groupKey``, which no other delivery has."""
    episode: Episode
    resolved: bool

    def body(self) -> bytes:
        """Return what Alertmanager would POST."""
        status = "resolved" if self.resolved else "firing"
        summary = f"{self.episode.labels['alertname']} in a storm."
        alert: dict[str, Any] = {
            "status": status,
            "labels": self.episode.labels,
            "annotations": {
                "summary": summary,
                "description": f"{summary} The limit is 0. " + "Seen on this rank for 5 s. " * 6,
                "runbook_url": f"docs/runbooks/{self.episode.labels['alertname']}.md",
            },
            "startsAt": self.episode.started,
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://localhost:9090/graph?g0.expr=vector%281%29&g0.tab=1",
            "fingerprint": self.episode.fingerprint,
        }
        return json.dumps(
            {
                "version": "4",
                "groupKey": self.key,
                "truncatedAlerts": 0,
                "status": status,
                "receiver": "trainswitch-controller",
                "groupLabels": self.episode.labels,
                "commonLabels": self.episode.labels,
                "commonAnnotations": alert["annotations"],
                "externalURL": "http://localhost:9093",
                "alerts": [alert],
            }
        ).encode()


def run_names(runs: int) -> list[str]:
    """Return the names of the storm's runs."""
    return [f"storm-{number:03d}" for number in range(runs)]


def draw(webhooks: int, runs: int, seed: int, now: float) -> list[Delivery]:
    """Return `webhooks` deliveries about `runs` runs whose alerts began shortly before `now` (Unix seconds).

    Each episode is delivered first, and then perhaps once more or as resolved. With many connections they may
    overtake each other, as they do behind a load balancer.
    """
    chance = random.Random(seed)  # noqa: S311 - a plan, no secret
    names = run_names(runs)
    episodes = [_episode(number, names, now) for number in range(max(1, round(webhooks * _FIRST)))]
    placed = [(chance.random(), number, False) for number in range(len(episodes))]
    repeated = round(webhooks * _REPEATED)
    for number in range(webhooks - len(episodes)):
        at, episode, _ = placed[chance.randrange(len(episodes))]
        placed.append((at + chance.uniform(0.01, _LATER), episode, number >= repeated))
    return [
        Delivery(f"{{}}:storm-{position:06d}", episodes[episode], resolved)
        for position, (_, episode, resolved) in enumerate(sorted(placed))
    ]


def _episode(number: int, names: list[str], now: float) -> Episode:
    turn, run = divmod(number, len(names))
    rank, alertname = divmod(turn, len(ALERTNAMES))
    labels = {
        "action": "controller",
        "alertname": ALERTNAMES[alertname],
        "instance": f"10.0.{run}.{rank}:9090",
        "job": "trainswitch",
        "rank": str(rank),
        "run": names[run],
        "severity": "critical",
    }
    started = dt.datetime.fromtimestamp(now - 10.0 + number % 1000 / 100, tz=dt.timezone.utc)
    return Episode(f"{number:016x}", names[run], labels, started.isoformat().replace("+00:00", "Z"))
