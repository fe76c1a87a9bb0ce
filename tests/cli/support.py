"""What the tests of the command share: a stand-in trainer, and waiting with a deadline."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import requests

from trainswitch.intervention.commands import ACTIONS, CommandOutcome, CommandResult
from trainswitch.intervention.control_file import (
    StatusFile,
    commands_path,
    read_commands,
    run_folder,
    status_path,
    write_control_file,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Finished:
    """How a run of the command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Finished]


@dataclass(frozen=True)
class Served:
    """A controller process and the home it serves."""

    home: Path
    port: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(home: Path, port: int, *options: str) -> Iterator[Served]:
    """Run ``trainswitch serve`` as a process until the end of the block."""
    served = Served(home, port)
    log = home.with_name("serve.log")
    module = [sys.executable, "-m", "trainswitch_controller", "serve"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*module, f"--port={port}", f"--home={home}", *options], stdout=output, stderr=subprocess.STDOUT
        )

    def ready() -> bool:
        if process.poll() is not None:
            pytest.fail(f"the controller ended: {log.read_text()}")
        try:
            return requests.get(f"{served.url}/-/ready", timeout=1.0).ok
        except requests.ConnectionError:
            return False

    try:
        until(ready, 60.0)
        yield served
    finally:
        process.terminate()
        process.wait(10.0)


class Trainer(threading.Thread):
    """Follows the control protocol as a trainer does, and answers every command with the same result."""

    def __init__(self, control: Path, run: str, result: CommandResult | None) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()
        self._control, self._run, self._result = control, run, result
        self._outcomes: list[CommandOutcome] = []
        run_folder(control, run).mkdir(parents=True)
        self._report()

    def run(self) -> None:
        """Answer until `done` is set."""
        answered: set[str] = set()
        while not self.done.wait(0.02):
            found = read_commands(commands_path(self._control, self._run), self._run)
            for command in found.commands if found is not None and self._result is not None else ():
                if command.id in answered:
                    continue
                answered.add(command.id)
                self._outcomes.append(
                    CommandOutcome(
                        id=command.id,
                        seq=command.seq,
                        action=command.action,
                        result=self._result,
                        step=120,
                        at=time.time(),
                        detail=f"{command.action} {command.params}.",
                    )
                )
                self._report()

    def _report(self) -> None:
        status = StatusFile(
            run=self._run,
            session="test",
            state="running",
            actions=(*ACTIONS, "drop_source"),
            step=120,
            applied_seq=max((outcome.seq for outcome in self._outcomes), default=0),
            results=tuple(self._outcomes),
            updated_at=time.time(),
            pid=os.getpid(),
            node="here",
        )
        write_control_file(status_path(self._control, self._run), status)


StartTrainer = Callable[..., Trainer]


def until(condition: Callable[[], T], timeout_s: float) -> T:
    """Return the first true value of `condition`, asked again and again until a deadline."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    pytest.fail(f"not within {timeout_s} s")
