"""Runs of several ranks carry every command out at one step on all ranks, or on none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.exporter.distributed import ranks as worker

from trainswitch.intervention.commands import Command, CommandOutcome
from trainswitch.intervention.control_file import (
    CheckpointEntry,
    CommandFile,
    StatusFile,
    read_status,
    write_control_file,
)

Seen = TypeVar("Seen")

LONGEST_SECONDS = 100.0
ROOT = Path(__file__).parents[3]


class Run:
    """The ranks of one run, seen from outside: by their diaries and the control folder."""

    def __init__(self, mode: str, ranks: int, home: Path) -> None:
        """Start them."""
        self.ranks, self.home = ranks, home
        self.control = home / "control" / worker.RUN
        self.seq = 0
        with (home / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, worker.__file__, mode, str(ranks), str(home)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "TRAINSWITCH_HOME": str(home),
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": str(ROOT),
                },
                start_new_session=True,
            )

    def stop(self) -> None:
        """End every process of the run."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def diary(self, rank: int) -> list[dict[str, Any]]:
        """Return what a rank has written so far."""
        path = self.home / f"rank-{rank}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def all_said(self, key: str, value: Any = None) -> bool:
        """Whether every rank has written `key` (with `value`)."""
        return all(
            any(key in fact and value in (None, fact[key]) for fact in self.diary(rank))
            for rank in range(self.ranks)
        )

    def until(self, what: str, look: Callable[[], Seen | None]) -> Seen:
        """Return what `look` returns once it is true."""
        deadline = time.monotonic() + LONGEST_SECONDS
        while time.monotonic() < deadline:
            seen = look()
            if seen:
                return seen
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        log = (self.home / "log").read_text(errors="replace")
        raise AssertionError(f"never seen: {what}; exit {self.process.poll()}\n{log[-6000:]}")

    def status(self) -> StatusFile | None:
        """Return rank 0's status."""
        return read_status(self.control / "status.json", worker.RUN)

    def checkpoints(self) -> tuple[CheckpointEntry, ...]:
        """Return what rank 0 says it holds."""
        status = self.status()
        return status.checkpoints if status else ()

    def command(self, action: str, **params: Any) -> int:
        """Command as the controller does, and return the sequence number."""
        self.seq += 1
        now = time.time()
        command = Command(
            id=f"c-{self.seq}",
            seq=self.seq,
            action=action,
            params=params,
            issued_at=now,
            expires_at=now + 600,
        )
        self.until("the run's folder", self.control.is_dir)
        write_control_file(
            self.control / "commands.json", CommandFile(run=worker.RUN, epoch=1, commands=(command,))
        )
        return self.seq

    def answer(self, seq: int) -> CommandOutcome:
        """Return the answer to a command once it is there."""

        def look() -> CommandOutcome | None:
            status = self.status()
            found = [result for result in status.results if result.seq == seq] if status else []
            return found[0] if found else None

        return self.until(f"the answer to command {seq}", look)

    def applied(self, action: str, **params: Any) -> CommandOutcome:
        """Command, and demand that it is applied."""
        outcome = self.answer(self.command(action, **params))
        assert outcome.result == "applied", outcome.detail
        return outcome

    def acted(self, rank: int) -> list[tuple[str, int]]:
        """Return each action of a rank with the step at which it was carried out."""
        return [(fact["acted"], fact["step"]) for fact in self.diary(rank) if "acted" in fact]

    def open(self, name: str) -> None:
        """Let the ranks through a gate."""
        (self.home / name).touch()

    def exit_code(self) -> int:
        """Wait for the end."""
        return self.process.wait(timeout=LONGEST_SECONDS)


Start = Callable[[str, int], Run]


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Starts runs, and ends what is left of them."""
    started: list[Run] = []

    def begin(mode: str, ranks: int) -> Run:
        started.append(Run(mode, ranks, home))
        return started[-1]

    yield begin
    for run in started:
        run.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("mode", "ranks"), [("train", 1), ("train", 4), ("sharded", 2)])
def test_every_rank_acts_at_one_step_and_a_replay_is_bit_identical(
    start: Start, mode: str, ranks: int
) -> None:
    """Every action happens at one step everywhere, and a replay from a checkpoint equals no failure."""
    run = start(mode, ranks)
    run.until("the gate", lambda: run.all_said("waits", "gate"))
    paused = run.command("pause")
    run.open("gate")
    at = run.answer(paused).step
    if ranks == 4:  # far longer than the group's patience: nothing of a pause may stay pending
        begun = time.monotonic()
        run.until("a long pause", lambda: time.monotonic() - begun > worker.PATIENCE_SECONDS + 2.0)
    rolled_back = run.applied("rollback", data="rewind")
    assert rolled_back.step <= at - 5, "a stable checkpoint"
    run.applied("resume")

    run.until("the last step", lambda: run.all_said("waits", "end"))
    run.open("end")
    run.applied("reduce_lr", factor=0.5)
    stopped = run.applied("stop")
    assert run.exit_code() == 0

    actions = [action for action, _ in run.acted(0)]
    assert actions == ["pause", "rollback", "resume", "reduce_lr", "stop"]
    for rank in range(ranks):
        assert run.acted(rank) == run.acted(0)
        diary = run.diary(rank)
        assert [fact["stopped"] for fact in diary if "stopped" in fact] == [stopped.step]
        bare = {fact["bare"]: fact["loss"] for fact in diary if "bare" in fact}
        watched = {fact["step"]: fact["loss"] for fact in diary if "loss" in fact and "step" in fact}
        steps = [fact["step"] for fact in diary if "loss" in fact and "step" in fact]
        assert len(steps) > len(set(steps)), "steps were replayed"
        assert {step: watched[step] for step in bare} == bare
        weights = [fact["weights"] for fact in diary if "weights" in fact]
        assert weights[-1] == next(fact["bare_weights"] for fact in diary if "bare_weights" in fact)


@pytest.mark.timeout(300)
def test_a_rank_that_dies_in_a_pause_is_named_and_holds_nobody(start: Start) -> None:
    """The survivors leave the pause, later commands are refused with the dead rank's number."""
    run = start("independent", 3)
    marked = run.applied("mark", word="here")
    for rank in range(3):
        said = [(fact["marked"], fact["at"]) for fact in run.diary(rank) if "marked" in fact]
        assert said == [("here", marked.step)], "an action of the script's own happens at one step everywhere"
    run.applied("pause")
    os.kill(next(fact["pid"] for fact in run.diary(2) if "pid" in fact), signal.SIGKILL)
    run.until("the end of the pause", lambda: (status := run.status()) and status.state == "running")
    outcome = run.answer(run.command("reduce_lr"))
    assert outcome.result == "refused"
    assert "rank 2 is gone" in outcome.detail
    run.open("end")
    run.until("the survivors' end", lambda: all(run.diary(rank)[-1].get("ended") for rank in (0, 1)))


@pytest.mark.timeout(300)
def test_what_one_rank_cannot_do_no_rank_does(start: Start) -> None:
    """A rank without the checkpoint, or without an optimizer, keeps all from acting, and says why."""
    run = start("unlike", 2)
    run.applied("snapshot")
    saved = run.until("the checkpoint", run.checkpoints)[0]
    outcome = run.answer(run.command("rollback", step=saved.step))
    assert outcome.result == "failed"
    assert "Rank 1: " in outcome.detail
    assert "No rank has changed anything" in outcome.detail
    outcome = run.answer(run.command("reduce_lr"))
    assert outcome.result == "failed"
    assert "Rank 1: this run has no optimizer" in outcome.detail
    outcome = run.answer(run.command("mark", word="here"))
    assert outcome.result == "failed"
    assert "Rank 1: action 'mark' does not exist" in outcome.detail
    assert not any("marked" in fact for fact in run.diary(0))
    paused = run.applied("pause")
    assert paused.step > saved.step
    run.applied("stop", snapshot=False)
    run.open("end")
    assert run.exit_code() == 0
    for rank in (0, 1):
        assert [action for action, _ in run.acted(rank)] == ["snapshot", "pause", "stop"]
    assert run.acted(0) == run.acted(1)


@pytest.mark.timeout(300)
def test_a_monitor_on_one_rank_only_refuses_commands_and_names_the_others(start: Start) -> None:
    """Ranks without a monitor cannot act, so none does; the run is held up once, for a moment."""
    run = start("alone", 2)
    outcome = run.answer(run.command("pause"))
    assert outcome.result == "refused"
    assert "no monitor on rank 1" in outcome.detail
    run.open("end")
    assert run.exit_code() == 0


@pytest.mark.timeout(300)
def test_without_a_process_group_the_ranks_keep_an_appointment(start: Start) -> None:
    """Ranks of different speed act at one step by way of files, and name the one that is killed."""
    run = start("files", 3)
    run.until("the first checkpoint", run.checkpoints)
    run.applied("pause")
    run.applied("reduce_lr")
    run.applied("resume")
    run.applied("pause_and_snapshot")
    acted = [run.acted(rank) for rank in range(3)]
    assert [action for action, _ in acted[0]] == ["pause", "reduce_lr", "resume", "pause_and_snapshot"]
    assert acted == [acted[0]] * 3
    os.kill(next(fact["pid"] for fact in run.diary(2) if "pid" in fact), signal.SIGKILL)
    run.until("the end of the pause", lambda: (status := run.status()) and status.state == "running")
    outcome = run.answer(run.command("pause"))
    assert outcome.result == "refused"
    assert "rank 2 is gone" in outcome.detail
    run.open("end")
    run.until("the survivors' end", lambda: all(run.diary(rank)[-1].get("ended") for rank in (0, 1)))
