"""The object a training loop holds."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exporter.conftest import MonitorFactory, sample

import trainswitch
from trainswitch.errors import ConfigError, RunNameError
from trainswitch.intervention.commands import Command
from trainswitch.intervention.control_file import (
    CommandFile,
    StatusFile,
    read_status,
    write_control_file,
)
from trainswitch.monitor import Monitor


def scrape(monitor: Monitor) -> bytes:
    """What Prometheus would get now."""
    assert monitor.url is not None
    with urllib.request.urlopen(monitor.url, timeout=5) as response:
        body: bytes = response.read()
    return body


def until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class Loop:
    """A tiny training run under a monitor, and a controller's pen."""

    def __init__(self, home: Path, monitor_factory: MonitorFactory, **settings: Any) -> None:
        torch.manual_seed(0)
        self.home = home
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)
        self.monitor = monitor_factory(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, settings=settings
        )
        self.seq = 0

    def train(self, steps: int) -> list[float]:
        """Take steps, and return their losses."""
        losses = []
        for _ in range(steps):
            loss = (self.model(torch.ones(2, 4)) - 3.0).square().mean()
            loss.backward()
            self.monitor.clip_grad_norm_(1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.monitor.step(loss, samples=2, tokens=8)
            losses.append(loss.item())
        return losses

    def command(self, *actions: str, params: dict[str, Any] | None = None, ttl: float = 60.0) -> None:
        """Write commands.json with the actions, and wait until the trainer's thread has read it."""
        commands = []
        for action in actions:
            self.seq += 1
            now = time.time()
            commands.append(
                Command(id=f"c{self.seq}", seq=self.seq, action=action, params=params or {},
                        issued_at=now, expires_at=now + ttl)
            )  # fmt: skip
        write_control_file(
            self.home / "control" / "run-1" / "commands.json",
            CommandFile(run="run-1", epoch=1, commands=tuple(commands)),
        )
        until(
            lambda: (
                any(c.seq == self.seq for c in self.monitor._channel.pending)
                or self.status().applied_seq >= self.seq
            ),
            "the command is read",
        )

    def status(self) -> StatusFile:
        """What status.json says."""
        status = read_status(self.home / "control" / "run-1" / "status.json", "run-1")
        assert status is not None
        return status

    def answered(self, steps: int = 200) -> Any:
        """Train until the newest command is answered, and return its result."""
        for _ in range(steps):
            self.train(1)
            if self.status().applied_seq >= self.seq:
                return self.status().results[-1]
            time.sleep(0.01)
        pytest.fail("the command was never answered")


@pytest.fixture
def loop(home: Path, new_monitor: MonitorFactory) -> Loop:
    """A run that saves every 10 steps."""
    return Loop(home, new_monitor, checkpoint={"interval_steps": 10, "probation_steps": 5})


def settle(loop: Loop) -> None:
    """Train until there is a stable checkpoint."""
    for _ in range(100):
        loop.train(1)
        loop.monitor._channel.refresh()
        if any(entry.kind == "stable" for entry in loop.monitor._store.entries()):  # type: ignore[union-attr]
            return
        time.sleep(0.005)
    pytest.fail("no checkpoint became stable")


def test_a_step_arrives_at_the_endpoint(loop: Loop) -> None:
    """Loss, norm before clipping, learning rate, samples and tokens are what the loop had."""
    losses = loop.train(3)
    text = scrape(loop.monitor)
    assert sample(text, "train_loss") == pytest.approx(losses[-1])
    assert sample(text, "train_steps_total") == 3
    assert sample(text, "train_samples_total") == 6
    assert sample(text, "train_tokens_total") == 24
    assert sample(text, "train_learning_rate", group="0") == pytest.approx(0.01)
    assert (sample(text, "train_grad_norm") or 0) > 1.0
    assert sample(text, "train_grad_clips_total") == 3
    assert sample(text, "train_run_state", state="running") == 1
    assert sample(text, "train_step_seconds_count") == 2  # the first step's duration says nothing


def test_without_torch_the_monitor_is_the_same(new_monitor: MonitorFactory) -> None:
    """Numbers are enough."""
    monitor = new_monitor()
    monitor.step(2.0, grad_norm=0.5)
    text = scrape(monitor)
    assert sample(text, "train_loss") == 2.0
    assert sample(text, "train_grad_norm") == 0.5
    assert sample(text, "train_run_info", node=os.uname().nodename, framework="none") == 1


def test_the_base_package_does_not_import_torch() -> None:
    """A trainer without torch pays nothing for it, and the controller never loads it."""
    code = "import sys, trainswitch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("run", ["a/b", "..", "../../etc", ""])
def test_a_run_name_with_a_path_is_refused(home: Path, run: str) -> None:
    """Nothing is created for a name that could lead outside."""
    with pytest.raises(RunNameError, match="is not allowed"):
        Monitor(run=run)
    assert list(home.iterdir()) == []


def test_micro_losses_are_averaged(new_monitor: MonitorFactory) -> None:
    """With gradient accumulation one record is written an optimizer step."""
    monitor = new_monitor()
    for value in (1.0, 2.0, 6.0):
        monitor.micro_step(torch.tensor(value, requires_grad=True))
    monitor.step()
    text = scrape(monitor)
    assert sample(text, "train_loss") == pytest.approx(3.0)
    assert sample(text, "train_steps_total") == 1


def test_waiting_for_data_is_told_apart(new_monitor: MonitorFactory) -> None:
    """batches() times the wait for each batch."""

    def slow() -> Any:
        for number in range(3):
            time.sleep(0.05)
            yield number

    monitor = new_monitor()
    for batch in monitor.batches(slow()):
        monitor.step(float(batch))
    text = scrape(monitor)
    assert sample(text, "train_data_wait_seconds_count") == 3
    assert (sample(text, "train_phase_seconds_total", phase="data") or 0) >= 0.15


def test_evaluation_is_told_apart(new_monitor: MonitorFactory) -> None:
    """Within evaluating() the state is 'evaluating', and its time is no step's."""
    monitor = new_monitor()
    monitor.step(1.0)
    with monitor.evaluating():
        assert sample(scrape(monitor), "train_run_state", state="evaluating") == 1
        time.sleep(0.1)
        monitor.evaluate(val_loss=torch.tensor(2.5), val_accuracy=0.5)
    monitor.step(1.0)
    text = scrape(monitor)
    assert sample(text, "train_eval", metric="val_loss") == 2.5
    assert sample(text, "train_evals_total", metric="val_accuracy") == 1
    assert (sample(text, "train_phase_seconds_total", phase="evaluate") or 0) >= 0.1
    assert (sample(text, "train_step_seconds_sum") or 0) < 0.1
    assert sample(text, "train_run_state", state="running") == 1


@pytest.mark.parametrize("call", [
    {"loss": "high"}, {"loss": [1, 2]}, {"loss": 1.0, "grad_norm": object()}, {"loss": 1.0, "epoch": "two"},
    {"loss": 1.0, "skipped": "whim"}, {"loss": 1.0, "samples": math.nan}, {"loss": 1.0, "tokens": -5},
])  # fmt: skip
def test_a_wrong_value_never_stops_training(new_monitor: MonitorFactory, call: dict[str, Any]) -> None:
    """step() does not raise; the next good step is recorded."""
    monitor = new_monitor()
    monitor.step(**call)
    monitor.step(1.0)
    assert (sample(scrape(monitor), "train_steps_total") or 0) >= 1
    assert sample(scrape(monitor), "train_loss") == 1.0


def test_clipping_without_an_optimizer_is_one_sentence(new_monitor: MonitorFactory) -> None:
    """clip_grad_norm_ says what it needs."""
    with pytest.raises(ConfigError, match="pass it to attach"):
        new_monitor().clip_grad_norm_(1.0)


def test_pause_waits_and_resume_goes_on(loop: Loop) -> None:
    """A paused loop stays in step() with its state shown, and goes on when told."""
    loop.train(5)
    loop.command("pause")
    thread = threading.Thread(target=loop.train, args=(2,))
    thread.start()
    until(lambda: loop.status().state == "paused", "paused")
    step = loop.monitor.current_step
    assert sample(scrape(loop.monitor), "train_run_state", state="paused") == 1
    time.sleep(0.6)
    assert loop.monitor.current_step == step
    assert (sample(scrape(loop.monitor), "train_phase_seconds_total", phase="paused") or 0) > 0.4
    loop.command("resume")
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert [result.action for result in loop.status().results] == ["pause", "resume"]
    assert {result.result for result in loop.status().results} == {"applied"}
    text = scrape(loop.monitor)
    assert sample(text, "trainswitch_commands_total", action="pause", result="applied") == 1
    assert sample(text, "train_run_state", state="running") == 1


def test_pause_and_snapshot_then_rollback_and_resume(loop: Loop) -> None:
    """The operator's way back: the snapshot is kept as evidence, the stable checkpoint is loaded."""
    settle(loop)
    stable = next(e.step for e in reversed(loop.monitor._store.entries()) if e.kind == "stable")  # type: ignore[union-attr]
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.fill_(math.nan)
    loop.command("pause_and_snapshot")
    thread = threading.Thread(target=loop.train, args=(1,))
    thread.start()
    until(lambda: loop.status().applied_seq == 1, "paused and saved")
    paused_at = loop.status().step
    assert next(e for e in loop.status().checkpoints if e.step == paused_at).kind == "suspect"
    loop.command("rollback", "reduce_lr", "resume")
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert [r.result for r in loop.status().results] == ["applied"] * 4, loop.status().results
    assert loop.monitor.current_step == stable
    assert all(torch.isfinite(parameter).all() for parameter in loop.model.parameters())
    losses = loop.train(5)
    assert all(math.isfinite(loss) for loss in losses)
    text = scrape(loop.monitor)
    assert sample(text, "train_learning_rate", group="0") == pytest.approx(0.005)
    assert sample(text, "train_step") == stable + 5


def test_stop_ends_the_loop_with_a_checkpoint(home: Path, loop: Loop) -> None:
    """batches() ends, the last step is saved, and the state is 'stopped'."""
    loop.train(3)
    loop.command("stop")
    taken = 0
    for _ in loop.monitor.batches(range(1000)):
        loop.train(1)
        taken += 1
    assert taken <= 2
    assert loop.monitor.should_stop
    loop.monitor.close()
    status = loop.status()
    assert status.state == "stopped"
    assert status.results[-1].result == "applied"
    assert status.checkpoints[-1].step == status.step


def test_reduce_lr_holds_under_the_scheduler(loop: Loop) -> None:
    """The factor stays, whatever the scheduler writes."""
    loop.train(2)
    loop.command("reduce_lr", params={"factor": 0.1})
    assert loop.answered().result == "applied"
    loop.train(3)
    assert sample(scrape(loop.monitor), "train_learning_rate", group="0") == pytest.approx(0.001)
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("action", "params", "result", "word"),
    [
        ("explode", {}, "refused", "does not exist"),
        ("reduce_lr", {"factor": 7}, "refused", "factor"),
        ("rollback", {"step": 999_999}, "failed", "999999"),
        ("resume", {}, "applied", "was not paused"),
    ],
)
def test_each_command_gets_one_answer(
    loop: Loop, action: str, params: dict[str, Any], result: str, word: str
) -> None:
    """What cannot be carried out is answered with a sentence, changes nothing, and training goes on."""
    loop.train(2)
    before = [parameter.clone() for parameter in loop.model.parameters()]
    loop.command(action, params=params)
    loop.monitor._boundary()
    answer = loop.status().results[-1]
    assert (answer.id, answer.result) == ("c1", result), answer
    assert word in answer.detail
    assert all(torch.equal(a, b) for a, b in zip(before, loop.model.parameters(), strict=True))
    loop.train(2)


def test_an_expired_command_is_not_carried_out(loop: Loop) -> None:
    """A command that is read too late is answered 'expired'."""
    loop.train(1)
    loop.command("stop", ttl=-1.0)
    assert loop.answered().result == "expired"
    assert not loop.monitor.should_stop


def test_a_pause_that_was_resumed_before_it_was_read_is_superseded(loop: Loop) -> None:
    """A trainer that finds pause and resume together does not pause."""
    loop.train(1)
    loop.command("pause", "resume")
    loop.train(1)
    assert [result.result for result in loop.status().results] == ["superseded", "applied"]


def test_a_command_is_carried_out_once_across_a_restart(home: Path, new_monitor: MonitorFactory) -> None:
    """The next session finds the same commands.json and does nothing."""
    first = Loop(home, new_monitor)
    first.train(1)
    first.command("stop", params={"snapshot": False})
    assert first.answered().result == "applied"
    first.monitor.close()
    second = Loop(home, new_monitor)
    second.train(3)
    second.monitor._channel.poll()
    second.train(1)
    assert not second.monitor.should_stop
    assert second.status().applied_seq == 1
    assert second.status().session != ""


def test_without_state_snapshot_and_rollback_are_refused(home: Path, new_monitor: MonitorFactory) -> None:
    """A run that attached nothing says so."""
    monitor = new_monitor()
    monitor.step(1.0)
    now = time.time()
    commands = tuple(
        Command(id=f"c{seq}", seq=seq, action=action, issued_at=now, expires_at=now + 60)
        for seq, action in enumerate(("snapshot", "rollback", "reduce_lr"), start=1)
    )
    write_control_file(
        home / "control" / "run-1" / "commands.json", CommandFile(run="run-1", epoch=1, commands=commands)
    )
    until(lambda: len(monitor._channel.pending) == 3, "read")
    monitor.step(1.0)
    status = read_status(home / "control" / "run-1" / "status.json", "run-1")
    assert status is not None
    assert [result.result for result in status.results] == ["refused"] * 3


def test_ranks_that_never_appear_keep_commands_from_being_carried_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, new_monitor: MonitorFactory
) -> None:
    """A command to some of a run's ranks would hang the others, so it is refused and the absent are named."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("trainswitch.intervention.rank_group.ASSEMBLE_SECONDS", 0.0)
    loop = Loop(home, new_monitor)
    loop.train(1)
    loop.command("pause")
    loop.train(1)
    assert loop.status().results[-1].result == "refused"
    assert "no word in the control folder from rank 1" in loop.status().results[-1].detail


def test_registration_comes_and_goes(home: Path, new_monitor: MonitorFactory) -> None:
    """Prometheus finds the run while it lives, and no target after it."""
    monitor = new_monitor()
    path = home / "targets" / "run-1.0.json"
    (group,) = json.loads(path.read_text())
    assert group["labels"]["run"] == "run-1"
    assert monitor.url is not None
    assert group["targets"][0] in monitor.url
    monitor.close()
    assert json.loads(path.read_text()) == []


def test_the_context_manager_tells_a_crash_from_an_end(home: Path, new_monitor: MonitorFactory) -> None:
    """An exception in the loop ends the run as 'crashed'."""
    monitor = new_monitor()
    with pytest.raises(ZeroDivisionError), monitor:
        monitor.step(1 / 0)
    status = read_status(home / "control" / "run-1" / "status.json", "run-1")
    assert status is not None
    assert status.state == "crashed"


@pytest.mark.parametrize(("code", "state"), [("", "finished"), ("raise SystemError('boom')", "crashed")])
def test_a_process_that_just_exits_is_tidied_up(home: Path, code: str, state: str) -> None:
    """Without close(), the end of the process withdraws the target and says how the run ended."""
    script = (
        "import trainswitch\n"
        "switch = trainswitch.attach(run='run-1', config={'server': {'port': 0}})\n"
        f"switch.step(1.0)\n{code}"
    )
    subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, timeout=60)
    assert json.loads((home / "targets" / "run-1.0.json").read_text()) == []
    status = read_status(home / "control" / "run-1" / "status.json", "run-1")
    assert status is not None
    assert status.state == state


def test_nothing_that_fails_around_it_stops_training(home: Path, new_monitor: MonitorFactory) -> None:
    """With every folder out of reach, training goes on, and the trouble is counted."""
    for name in ("control", "targets", "checkpoints"):
        (home / name).write_text("a file in the folder's place")
    loop = Loop(home, new_monitor, checkpoint={"interval_steps": 2})
    losses = loop.train(10)
    assert len(losses) == 10
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        text = scrape(loop.monitor)
        if sample(text, "train_checkpoint_failures_total", reason="disk"):
            break
        time.sleep(0.05)
    assert (sample(text, "train_checkpoint_failures_total", reason="disk") or 0) >= 1
    assert (sample(text, "trainswitch_control_file_errors_total", reason="write") or 0) >= 1
    assert sample(text, "train_steps_total") == 10


def test_shared_memory_that_is_full_is_replaced_by_private(
    home: Path, new_monitor: MonitorFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without room in /dev/shm the run is watched all the same."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    monitor = new_monitor()
    monitor.step(1.0)
    assert sample(scrape(monitor), "train_loss") == 1.0
    assert "Going on in private memory" in caplog.text


def test_closing_twice_and_stepping_after_is_harmless(new_monitor: MonitorFactory) -> None:
    """close() may be called again; a late step is reported, not raised."""
    monitor = new_monitor()
    monitor.close()
    monitor.close()
    monitor.step(1.0)


def test_attach_is_the_public_face(home: Path) -> None:
    """The names of the README are there."""
    with trainswitch.attach(run="x", config={"server": {"port": 0, "linger_seconds": 0}}) as switch:
        switch.step(1.0)
    assert isinstance(switch, trainswitch.Monitor)


def test_a_snapshot_that_has_to_wait_copies_nothing(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a periodic save is written, the command waits; the state is copied once, when its turn comes."""
    held = threading.Event()
    copies: list[int] = []
    store, training = loop.monitor._store, loop.monitor._training
    assert store is not None
    assert training is not None
    monkeypatch.setattr(store._writer, "_judge", lambda _: "" if held.wait(30) else "never")
    capture = training.capture

    def counted(meta: dict[str, Any]) -> dict[str, Any]:
        copies.append(meta["step"])
        return capture(meta)

    monkeypatch.setattr(training, "capture", counted)
    loop.train(10)
    loop.command("snapshot")
    loop.train(5)
    assert copies == [10]
    held.set()
    assert copies.count(int(loop.answered().detail.removeprefix("saved step ").rstrip("."))) == 1


def test_a_snapshot_is_not_answered_by_the_save_before_it(loop: Loop) -> None:
    """A periodic save that is just ending has an answer of its own, which is nobody's."""
    entered, held = threading.Event(), threading.Event()
    keeper = loop.monitor._keeper
    assert keeper is not None
    tell = keeper.on_saved

    def slowly(result: Any) -> None:
        entered.set()
        assert held.wait(30)
        tell(result)

    keeper.on_saved = slowly
    loop.train(10)
    assert entered.wait(30)
    loop.command("snapshot")
    loop.train(2)
    held.set()
    answer = loop.answered()
    step = int(answer.detail.removeprefix("saved step ").rstrip("."))
    assert (answer.result, answer.detail) == ("applied", f"saved step {step}.")
    assert step > 10
    assert step in [entry.step for entry in loop.status().checkpoints]
