"""A home folder of its own for every test, the command in this process, and a real controller."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.support import Finished, Run, Served, StartTrainer, Trainer, serving

from trainswitch.config import home_folder
from trainswitch.intervention.commands import CommandResult
from trainswitch_controller.cli import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a home folder that nothing else uses, and no controller of the environment."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TRAINSWITCH_HOME", str(folder))
    for variable in ("TRAINSWITCH_CONTROLLER", "TRAINSWITCH_TOKEN_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``trainswitch`` with arguments in this process."""

    def command(*arguments: str) -> Finished:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Finished(code, captured.out, captured.err)

    return command


@pytest.fixture
def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    return _unused_port()


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run ``trainswitch serve`` in a home of its own, once for all tests of a module."""
    with serving(tmp_path_factory.mktemp("served") / "home", _unused_port()) as served:
        yield served


@pytest.fixture
def controller(_served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """Let the test's commands find the module's controller and its home."""
    monkeypatch.setenv("TRAINSWITCH_HOME", str(_served.home))
    monkeypatch.setenv("TRAINSWITCH_CONTROLLER", _served.url)
    return _served


@pytest.fixture
def name() -> str:
    """Return the name of a run that no other test uses."""
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def trainer() -> Iterator[StartTrainer]:
    """Start stand-in trainers: ``trainer(name, "applied")``; with None as result, one never answers."""
    started: list[Trainer] = []

    def start(run: str, result: CommandResult | None = "applied") -> Trainer:
        started.append(Trainer(home_folder() / "control", run, result))
        started[-1].start()
        return started[-1]

    yield start
    for thread in started:
        thread.done.set()
        thread.join(5.0)


def _unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
