"""The whole loop on its real parts: what the end-to-end tests share."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainswitch_controller.cli.stack import stop_stack

Demo = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Runs ``trainswitch demo --json`` in a home of its own, and returns the JSON object of its last line."""
    with contextlib.ExitStack() as leaving:

        def run(*arguments: str) -> dict[str, Any]:
            home = tmp_path_factory.mktemp("demo")
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "trainswitch_controller",
                    "demo",
                    "--json",
                    "--home",
                    home,
                    *arguments,
                ],
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            for folder in (home / "demo").iterdir():
                leaving.callback(stop_stack, folder)
            assert done.returncode == 0, done.stderr[-3000:]
            document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return document

        yield run


@pytest.fixture
def stack_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose stack is down at the end."""
    monkeypatch.setenv("TRAINSWITCH_HOME", str(tmp_path))
    yield tmp_path
    stop_stack(tmp_path)
