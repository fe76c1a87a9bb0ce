"""SIGKILL at the worst instants: nothing that was answered with 200 is lost, nothing is carried out twice."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

SCRIPT = """
import os, signal, sys
from trainswitch_controller import carrying, serving
from trainswitch_controller.settings import Settings

write, die = carrying.write_control_file, sys.argv[2]

def deadly(path, content, keys=None):
    if die == "before_write" and content.commands:
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, content, keys)
    if die == "after_write" and content.commands:
        os.kill(os.getpid(), signal.SIGKILL)

carrying.write_control_file = deadly
sys.exit(serving.serve(Settings.model_validate_json(sys.argv[1])))
"""


class Process:
    """A controller that can be killed, on a port that stays the same."""

    def __init__(self, home: Any, tools: Any) -> None:
        self.home = home
        self.tools = tools
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, die: str = "never") -> None:
        """Start it and wait until it is ready or has ended."""
        settings = self.home.settings(port=self.port)
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, settings.model_dump_json(), die],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.tools.wait_for(self.is_ready)

    def is_ready(self) -> bool:
        """Return whether it is ready, or gone before it could be."""
        try:
            return self.client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        """End it without warning."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def deliver(self, body: Any) -> bool:
        """Deliver as Alertmanager does, and return whether it was answered with 200."""
        bearer = {"Authorization": f"Bearer {self.home.alertmanager_token}"}
        try:
            return self.client.post("/api/v1/alerts", json=body, headers=bearer).status_code == 200
        except httpx.TransportError:
            return False

    def commands(self) -> list[dict[str, Any]]:
        """Return every command that its journal holds."""
        bearer = {"Authorization": f"Bearer {self.home.operator_token}"}
        found: list[dict[str, Any]] = self.client.get("/api/v1/commands?limit=1000", headers=bearer).json()[
            "commands"
        ]
        return found


@pytest.fixture
def process(home: Any, tools: Any) -> Iterator[Process]:
    """A controller process; it is killed after the test."""
    process = Process(home, tools)
    yield process
    process.kill()
    process.client.close()


@pytest.mark.parametrize("die", ["before_write", "after_write"])
@pytest.mark.parametrize("trainer_is_quick", [False, True])
def test_killed_around_the_write(
    die: str, trainer_is_quick: bool, home: Any, tools: Any, process: Process
) -> None:
    """Killed between commit and write, or write and mark: one command, delivered, carried out once."""
    trainer = home.trainer()
    process.start(die)
    body = tools.webhook(tools.alert(starts_at=time.time()))
    process.deliver(body)  # the answer may have been lost with the process
    assert process.process is not None
    assert process.process.wait(timeout=20) == -signal.SIGKILL
    assert len(trainer.commands()) == (1 if die == "after_write" else 0)
    if trainer_is_quick:
        trainer.poll()
    process.start()
    process.deliver(body)  # Alertmanager repeats what was not answered
    tools.wait_for(lambda: bool(trainer.poll() or process.commands()[0]["state"] == "applied"))
    [command] = process.commands()
    assert command["written_at"] is not None
    assert trainer.carried_out == [command["id"]]


def test_killed_at_any_instant(home: Any, tools: Any, process: Process) -> None:
    """Deliveries, resends and kills at random instants: every episode acts exactly once."""
    chance = random.Random(20260101)
    trainers = [home.trainer(f"run{number}") for number in range(4)]
    process.start()
    waiting = [tools.webhook(tools.alert(run=trainer.run, starts_at=time.time())) for trainer in trainers]
    episodes = len(waiting)
    for _ in range(6):
        deadline = time.monotonic() + chance.uniform(0.0, 0.15)
        while time.monotonic() < deadline:
            body = chance.choice(waiting)
            process.deliver(body)
            chance.choice(trainers).poll()
        process.kill()
        process.start()
    for body in waiting:
        tools.wait_for(lambda body=body: process.deliver(body))

    def all_applied() -> bool:
        for trainer in trainers:
            trainer.poll()
        return [command["state"] for command in process.commands()] == ["applied"] * episodes

    tools.wait_for(all_applied)
    assert sorted(command["run"] for command in process.commands()) == sorted(
        trainer.run for trainer in trainers
    )
    assert [len(trainer.carried_out) for trainer in trainers] == [1] * episodes
