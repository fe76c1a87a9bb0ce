"""The real Prometheus and Alertmanager, and trouble that they find by themselves."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import yaml

from benchmarks.chaos import programs
from benchmarks.chaos.journal import FINAL, JournaledCommand
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.processes import Program, Subject
from benchmarks.chaos.sender import Episode
from benchmarks.chaos.world import Trainer, World, free_port
from trainswitch_controller.cli.stack.binaries import find_binaries
from trainswitch_controller.cli.stack.render import render_alertmanager, render_links

_ALERTMANAGER = Path(__file__).parents[2] / "alertmanager" / "alertmanager.yml"
_RULES = {
    "groups": [
        {
            "name": "chaos",
            "rules": [
                {
                    "alert": alert,
                    "expr": f"max by (run) ({metric}) > 100",
                    "labels": {"severity": "critical", "action": "reduce_lr"},
                    "annotations": {"summary": "made by scripts/chaos"},
                }
                for alert, metric in (("ChaosLoss", "train_loss"), ("ChaosNorm", "train_grad_norm"))
            ],
        }
    ]
}
_PLACES = {"ChaosLoss": programs.LOSS, "ChaosNorm": programs.GRAD_NORM}
_HIGH, _LOW = 1000.0, 1.0
_QUIET_S = 1.0
"""How long no alert has to be seen: a webhook may still be underway."""


class Stack:
    """Prometheus and Alertmanager of one world; both look at everything once a second."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._folder = world.home / "stack"
        self._folder.mkdir()
        self._binaries = find_binaries()
        self._addresses = {name: f"127.0.0.1:{free_port()}" for name in ("prometheus", "alertmanager")}
        self._configure()
        self.subjects = {
            "prometheus": Subject("prometheus", self._launch_prometheus),
            "alertmanager": Subject("alertmanager", self._launch_alertmanager),
        }

    def firing(self, run: str) -> bool:
        """Whether Prometheus or Alertmanager has an alert of `run`; also where one does not answer."""
        with contextlib.suppress(requests.RequestException, ValueError, KeyError):
            seen = _get(f"http://{self._addresses['prometheus']}/api/v1/alerts")["data"]["alerts"]
            told = _get(f"http://{self._addresses['alertmanager']}/api/v2/alerts")
            return any(alert["labels"].get("run") == run for alert in [*seen, *told])
        return True

    def _configure(self) -> None:
        prometheus = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "900ms", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "alerting": {
                "alertmanagers": [{"static_configs": [{"targets": [self._addresses["alertmanager"]]}]}]
            },
            "scrape_configs": [
                {
                    "job_name": "trainswitch",
                    "honor_labels": True,
                    "file_sd_configs": [
                        {"files": [str(self._world.home / "targets" / "*.json")], "refresh_interval": "1s"}
                    ],
                }
            ],
        }
        addresses = {
            **self._addresses,
            "controller": self._world.url.removeprefix("http://"),
            "grafana": "127.0.0.1:1",  # only links in notifications, which reach nobody here, lead there
        }
        links = self._folder / "links.tmpl"
        links.write_text(render_links(addresses), encoding="utf-8")
        alertmanager = render_alertmanager(
            _ALERTMANAGER.read_text(encoding="utf-8"),
            source=_ALERTMANAGER,
            token_file=self._world.home / "alertmanager.token",
            links=links,
            addresses=addresses,
        )
        for name, text in (
            ("rules", yaml.safe_dump(_RULES)),
            ("prometheus", yaml.safe_dump(prometheus)),
            ("alertmanager", alertmanager),
        ):
            (self._folder / f"{name}.yml").write_text(text, encoding="utf-8")

    def _launch_prometheus(self) -> Program:
        return Program(
            [
                str(self._binaries["prometheus"]),
                f"--config.file={self._folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._folder / 'prometheus'}",
                f"--web.listen-address={self._addresses['prometheus']}",
                "--rules.alert.resend-delay=5s",
            ],
            self._world.home / "prometheus.log",
        )

    def _launch_alertmanager(self) -> Program:
        return Program(
            [
                str(self._binaries["alertmanager"]),
                f"--config.file={self._folder / 'alertmanager.yml'}",
                f"--storage.path={self._folder / 'alertmanager'}",
                f"--web.listen-address={self._addresses['alertmanager']}",
                "--cluster.listen-address=",
            ],
            self._world.home / "alertmanager.log",
        )


@contextlib.contextmanager
def run_stack(world: World) -> Iterator[Stack]:
    """Yield a stack that reports to the controller of `world`; at the end nothing of it runs.

    Raises:
        CliError: Prometheus or Alertmanager is not installed.
    """
    stack = Stack(world)
    try:
        for subject in stack.subjects.values():
            subject.start()
        yield stack
    finally:
        for subject in stack.subjects.values():
            subject.end()


def _get(url: str) -> Any:
    return requests.get(url, timeout=5.0).json()


class RealTrouble:
    """A loss or a gradient norm that stays too high until the controller has answered."""

    chaos_s = 6.0
    calm_within_s = 60.0  # Alertmanager keeps an alert for 20 s whose end a killed Prometheus never told

    def __init__(self, stack: Stack, plan: Plan, trainer: Trainer) -> None:
        self.episodes: list[Episode] = []
        """None: which there are, Prometheus and Alertmanager decide."""
        self._stack = stack
        self._trainer = trainer
        self._begins = {planned.alertname: planned.begins for planned in plan.episodes}
        self._acted: set[str] = set()
        self._fired_at = time.monotonic()

    @property
    def unanswered(self) -> list[str]:
        """Alerts that have no answer."""
        return sorted(self._begins.keys() - self._acted)

    def turn(self, now: float) -> None:
        """Raise what is to be high by now."""
        for name, begins in self._begins.items():
            if now >= begins and name not in self._acted:
                self._trainer.numbers[_PLACES[name]] = _HIGH

    def settle(self, commands: list[JournaledCommand]) -> bool:
        """Lower what was answered; say whether all was, and no alert of it is left."""
        self.turn(time.monotonic())
        for command in commands:
            if command.alertname in self.unanswered and command.state in FINAL:
                self._acted.add(command.alertname)
                self._trainer.numbers[_PLACES[command.alertname]] = _LOW
                self._fired_at = time.monotonic()  # what was scraped just before may fire once more
        if self.unanswered or self._stack.firing(self._trainer.run):
            self._fired_at = time.monotonic()
        return time.monotonic() > self._fired_at + _QUIET_S
