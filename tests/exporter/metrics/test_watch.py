"""Telling what a trainer does from its records and its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from trainswitch.config import SidecarConfig
from trainswitch.metrics.watch import TrainerWatch
from trainswitch.processes import Seen, look, start_ticks
from trainswitch.recording.records import VALUES, Kind, Record, Value


class Trainer:
    """A trainer with a clock of its own, looked at ten times a second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seen: Seen = "alive"
        self.ended = False
        config = SidecarConfig(hang_seconds=60, hang_factor=20)
        self.watch = TrainerWatch(config, lambda: self.seen, lambda: self.ended, lambda: self.now)

    def record(self, kind: Kind, label: str = "", seconds: float | None = None) -> None:
        """Write a record."""
        values = [0.0] * VALUES
        present = 0
        if seconds is not None:
            values[Value.STEP_SECONDS] = seconds
            present = 1 << Value.STEP_SECONDS
        self.watch.hear(Record(kind, 0, self.now, tuple(values), present, label))

    def run(self, steps: int, seconds: float = 1.0) -> None:
        """Take steps of that length."""
        self.record(Kind.STATE, "running")
        for _ in range(steps):
            self.record(Kind.STEP, seconds=seconds)

    def after(self, seconds: float) -> str:
        """The state after so much time."""
        state = str(self.watch.state())
        for _ in range(int(seconds * 10)):
            self.now += 0.1
            state = self.watch.state()
        return state


def test_the_longer_limit_counts() -> None:
    """A trainer hangs after hang_seconds and after hang_factor of its steps, whichever is later."""
    fast, slow = Trainer(), Trainer()
    fast.run(10, seconds=0.1)
    slow.run(10, seconds=10.0)
    assert fast.after(59) == "running"
    assert fast.after(2) == "hung"
    assert slow.after(199) == "running"
    assert slow.after(2) == "hung"


def test_a_step_ends_a_hang() -> None:
    """It runs again from its next step on."""
    trainer = Trainer()
    trainer.run(10)
    assert trainer.after(61) == "hung"
    trainer.record(Kind.STEP, seconds=1.0)
    assert trainer.after(0) == "running"


def test_polling_the_control_folder_is_no_progress() -> None:
    """A thread that lives on says nothing about the loop."""
    trainer = Trainer()
    trainer.run(10)
    for _ in range(70):
        trainer.record(Kind.CONTROL_READ)
        trainer.after(1)
    assert trainer.after(0) == "hung"


@pytest.mark.parametrize("state", ["evaluating", "checkpointing", "paused", "init"])
def test_outside_of_running_nothing_hangs(state: str) -> None:
    """How long an evaluation or a pause takes is nobody's business here."""
    trainer = Trainer()
    trainer.run(10)
    trainer.record(Kind.STATE, state)
    assert trainer.after(1000) == "running"


def test_the_first_steps_may_take_any_time() -> None:
    """They compile."""
    trainer = Trainer()
    trainer.run(4)
    assert trainer.after(1000) == "running"


def test_suspension_is_no_hang_and_its_time_does_not_count() -> None:
    """After SIGCONT the clock goes on from where it was."""
    trainer = Trainer()
    trainer.run(10)
    trainer.after(50)
    trainer.seen = "suspended"
    assert trainer.after(1000) == "suspended"
    trainer.seen = "alive"
    assert trainer.after(9) == "running"
    assert trainer.after(2) == "hung"


def test_a_watch_that_was_held_itself_does_not_blame_the_trainer() -> None:
    """When the whole machine slept for an hour, nobody hangs."""
    trainer = Trainer()
    trainer.run(10)
    trainer.after(0)
    trainer.now += 3600
    assert trainer.after(50) == "running"


def test_who_says_goodbye_has_not_died() -> None:
    """Death without the word is one thing, with it another."""
    trainer = Trainer()
    trainer.seen = "dead"
    assert trainer.after(0) == "died"
    trainer.ended = True
    assert trainer.after(0) == "ended"


def test_a_process_is_seen_alive_suspended_and_dead() -> None:
    """From /proc, also before it is reaped, and by its start as well as its pid."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_ticks(process.pid)
    assert started is not None
    try:
        assert look(process.pid, started) == "alive"
        assert look(process.pid, started + 1) == "dead"
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert look(process.pid, started) == "suspended"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert look(process.pid, started) == "dead"
    finally:
        process.kill()
        process.communicate()
    assert start_ticks(process.pid) is None
