"""The controller that is stormed, and the trainers that it commands: processes of their own, as in life."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from trainswitch.errors import TrainswitchError
from trainswitch_controller.cli.tokens import alertmanager_token_path, ensure_token, operator_token_path

_START_S = 60.0
_REPOSITORY = Path(__file__).resolve().parents[2]


class StormError(TrainswitchError):
    """The controller does not start."""


@dataclasses.dataclass
class Stormed:
    """One running controller."""

    process: psutil.Process
    port: int
    token: str
    """That Alertmanager presents."""

    def resident_bytes(self) -> int:
        """Return how much memory the controller holds."""
        return int(self.process.memory_info().rss)

    def cpu_seconds(self) -> float:
        """Return the processor time that it has taken so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextlib.contextmanager
def controller(home: Path, journal_url: str, policy: Path) -> Iterator[Stormed]:
    """Start ``trainswitch serve`` in `home`, yield it when it is ready, and end it.

    Raises:
        StormError: it was not ready within a minute.
    """
    port = _free_port()
    command = ["--home", home, "--journal", journal_url, "--policy", policy, "--port", port]
    for path in (alertmanager_token_path(home), operator_token_path(home)):
        ensure_token(path)
    log_path = home / "controller.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainswitch_controller", "serve", *map(str, command)],
            stdout=log,
            stderr=log,
            cwd=_REPOSITORY,
        )
    try:
        deadline = time.monotonic() + _START_S
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                last = (log_path.read_text().splitlines() or ["it said nothing"])[-1]
                raise StormError(f"the controller is not ready: {last}")
            time.sleep(0.05)
        yield Stormed(psutil.Process(process.pid), port, alertmanager_token_path(home).read_text().strip())
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Trainers:
    """The trainers of all runs, in one process."""

    def __init__(self, folder: Path, runs: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.storm.trainers", str(folder), *runs],
            stdout=subprocess.PIPE,
            text=True,
            cwd=_REPOSITORY,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def end(self) -> dict[str, list[str]]:
        """End them and return the ids of the commands that each run has carried out, in order."""
        self._process.terminate()
        said, _ = self._process.communicate(timeout=20)
        carried_out: dict[str, list[str]] = json.loads(said)
        return carried_out

    def kill(self) -> None:
        """End them whatever they do."""
        self._process.kill()
        self._process.communicate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
