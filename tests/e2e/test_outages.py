"""Training goes on while the parts around it are killed, and they find their way back."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import trainswitch
from trainswitch.intervention.control_file import read_status, status_path
from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.stack import load_stack, start_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


class Training:
    """A run that steps in a thread until it is told to end; its next loss can be poisoned."""

    def __init__(self) -> None:
        self.poison = False
        self.over = False
        self.switch = trainswitch.attach(
            run="outage",
            config={"server": {"port": 0, "linger_seconds": 0}, "statistics": {"warmup_steps": 20}},
        )
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        while not (self.over or self.switch.should_stop):
            loss, self.poison = (math.nan if self.poison else 2.0), False
            self.switch.step(loss, grad_norm=1.0)
            time.sleep(0.01)

    def end(self) -> None:
        """Stop stepping and close."""
        self.over = True
        self._thread.join(timeout=10)
        self.switch.close()


def until(condition: Callable[[], bool], what: str, seconds: float = 40.0) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def test_everything_around_the_trainer_may_die(stack_home: Path) -> None:
    """With Prometheus, Alertmanager and controller killed the run steps on; once back, they pause it."""
    stack = start_stack(stack_home)
    training = Training()
    try:
        for process in stack.processes:
            os.kill(process.pid, signal.SIGKILL)
        before = training.switch.current_step
        until(lambda: training.switch.current_step > before + 100, "steps while all are dead")
        training.poison = True  # nobody is there to see it, but the counter keeps it
        until(lambda: not training.poison, "the poisoned step is taken")
        again = start_stack(stack_home)
        assert {process.name for process in again.processes} == {p.name for p in stack.processes}
        assert load_stack(stack_home) == again

        def paused() -> bool:
            status = read_status(status_path(stack_home / "control", "outage"), "outage")
            return status is not None and status.state == "paused"

        until(paused, "the fault of the outage is answered")
        with ControllerClient(again.controller, again.operator_token_file) as client:
            assert len(client.commands("outage", 100)) == 1
            client.issue("outage", "resume", {}, "the test is over")
        before = training.switch.current_step
        until(lambda: training.switch.current_step > before + 10, "training goes on")
    finally:
        training.end()
