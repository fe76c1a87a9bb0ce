"""The example trainer as a child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainswitch.config import HOME_VARIABLE
from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.errors import StackError

_GRACE_S = 10.0


class Trainer:
    """One run of examples/train_gpt.py in a process of its own."""

    def __init__(self, home: Path, run: str, *, steps: int, fault: str, fault_step: int) -> None:
        """Start training.

        Raises:
            StackError: torch is not installed.
        """
        folder = home / "demo"
        folder.mkdir(parents=True, exist_ok=True)
        self.run = run
        self.steps = steps
        self.log = folder / f"{run}.log"
        self._result = folder / f"{run}.result.json"
        self._events = folder / f"{run}.events.json"
        script = assets_folder() / "examples" / "train_gpt.py"
        arguments = [
            sys.executable, str(script), "--run", run, "--steps", str(steps), "--fault", fault,
            "--fault-step", str(fault_step), "--result", str(self._result), "--events", str(self._events),
        ]  # fmt: skip
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, HOME_VARIABLE: str(home)},
            )

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process.poll() is None

    @property
    def fault_at(self) -> float | None:
        """Unix time at which the faulty step ended; None before it."""
        event = _read(self._events)
        return float(event["at"]) if event else None

    @property
    def val_loss(self) -> float | None:
        """Final validation loss; None before the end."""
        result = _read(self._result)
        return float(result["val_loss"]) if result else None

    def check(self) -> None:
        """Raise if the process has failed.

        Raises:
            StackError: it ended with an error; the sentence has the end of its log.
        """
        code = self._process.poll()
        if code:
            tail = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise StackError(
                f"the trainer of {self.run} ended with code {code}: {' / '.join(tail)} ({self.log})."
            )

    def end(self) -> None:
        """End the process if it is still running."""
        if self.running:
            self._process.terminate()
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or not yet whole
        return None
    return document
