"""Everything that runs and lasts from round to round: controller, disk, sender; and each round's trainer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import secrets
import socket
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import requests

from benchmarks.chaos import programs
from benchmarks.chaos.disk import Disk, small_disk
from benchmarks.chaos.journal import JournalFile
from benchmarks.chaos.processes import Forked, Subject
from benchmarks.chaos.sender import Sender

POLICY = Path(__file__).with_name("policy.yml")
_STARTED_WITHIN_S = 60.0


@dataclasses.dataclass
class World:
    """What a round is played in."""

    home: Path
    disk: Disk
    context: ForkServerContext
    url: str
    """Of the controller."""
    journal: JournalFile
    tokens: dict[str, str]
    offsets: dict[str, Any]
    """Shared number by process: seconds that its clock is ahead."""
    posted_at: float = 0.0
    """When a webhook left last, in monotonic time."""

    def __post_init__(self) -> None:
        self.controller = Subject("controller", self._launch_controller)
        self.sender = Sender(self.url, self.tokens["alertmanager"], self._on_post)

    def _on_post(self) -> None:
        self.posted_at = time.monotonic()

    def _launch_controller(self) -> Forked:
        settings = {
            "control_dir": self.disk.control,
            "journal_url": f"sqlite:///{self.home / 'journal.db'}",
            "policy": POLICY,
            "alertmanager_token_file": self.home / "alertmanager.token",
            "operator_token_file": self.home / "operator.token",
            "port": int(self.url.rpartition(":")[2]),
            "poll_interval_s": 0.05,
        }
        log = self.home / "controller.log"
        return Forked(
            self.context.Process(target=programs.serve, args=(settings, log, self.offsets["controller"]))
        )

    def ready(self) -> bool:
        """Whether the controller can work."""
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.url}/-/ready", timeout=5.0).ok
        return False

    def wait_until_ready(self) -> None:
        """Wait for the controller's first start.

        Raises:
            TimeoutError: it is not ready in time.
        """
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while not self.ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the controller is not ready: see {self.home / 'controller.log'}.")
            time.sleep(0.05)

    def order(self, run: str, action: str) -> str | None:
        """Command `run` as an operator does; return the command's id where that was acknowledged."""
        with contextlib.suppress(requests.RequestException):
            answer = requests.post(
                f"{self.url}/api/v1/runs/{run}/commands",
                json={"action": action, "reason": "scripts/chaos"},
                headers={"Authorization": f"Bearer {self.tokens['operator']}"},
                timeout=5.0,
            )
            if answer.status_code == requests.codes.accepted:
                return str(answer.json()["command"]["id"])
        return None


class Trainer(Subject):
    """The trainer of one run, in one incarnation after the other."""

    def __init__(self, world: World, run: str, *, restores: bool) -> None:
        super().__init__("trainer", self._launch_trainer)
        self.run = run
        self.numbers = multiprocessing.get_context("forkserver").RawArray("d", [2.0, 1.0, 0.0])
        """Loss and gradient norm that it reports, and whether it is to end."""
        self.witness_path = world.home / "witness" / f"{run}.log"
        self.checkpoints = world.home / "checkpoints" / run
        self._world = world
        self._restores = restores
        self._incarnations = 0
        # One port for all of them, as a training script has: their series go on where the last one ended.
        self._port = free_port()

    def _launch_trainer(self) -> Forked:
        self._incarnations += 1
        home = self._world.home
        config = {
            "control": {"folder": str(self._world.disk.control), "poll_interval_seconds": 0.02},
            "checkpoint": {
                "folder": str(home / "checkpoints"),
                "interval_steps": 10 if self._restores else 0,
                "probation_steps": 5,
            },
            "server": {"port": self._port, "linger_seconds": 0, "targets_dir": str(home / "targets")},
        }
        return Forked(
            self._world.context.Process(
                target=programs.train,
                args=(self.run, self._incarnations, config, self.witness_path),
                kwargs={
                    "restores": self._restores,
                    "numbers": self.numbers,
                    "log": home / "trainers.log",
                    "offset": self._world.offsets["trainer"],
                },
            )
        )

    def status(self) -> dict[str, Any]:
        """Return what ``status.json`` says; nothing where it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            document = json.loads((self._world.disk.control / self.run / "status.json").read_bytes())
            if isinstance(document, dict):
                return document
        return {}

    def finish(self) -> bool:
        """Let the run end as a training ends; return whether it did."""
        self.numbers[programs.END] = 1.0
        return self.end(grace_s=10.0)


@contextlib.contextmanager
def create_world(home: Path, context: ForkServerContext) -> Iterator[World]:
    """Yield a world in the empty folder `home`, with its controller ready; at the end nothing of it runs.

    Raises:
        TimeoutError: the controller does not start.
    """
    tokens = {role: secrets.token_hex(16) for role in ("alertmanager", "operator")}
    for role, token in tokens.items():
        path = home / f"{role}.token"
        path.touch(mode=0o600)
        path.write_text(f"{token}\n", encoding="utf-8")
    for folder in ("witness", "targets", "checkpoints"):
        (home / folder).mkdir()
    with small_disk(home) as disk:
        world = World(
            home=home,
            disk=disk,
            context=context,
            url=f"http://127.0.0.1:{free_port()}",
            journal=JournalFile(home / "journal.db"),
            tokens=tokens,
            offsets={name: context.RawValue("d", 0.0) for name in ("trainer", "controller")},
        )
        try:
            world.controller.start()
            world.wait_until_ready()
            yield world
        finally:
            world.sender.close()
            world.controller.end()


def free_port() -> int:
    """Return a port of loopback that nobody uses at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
