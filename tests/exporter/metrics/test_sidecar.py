"""The sidecar, with real trainers that hang, are suspended, die and end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.exporter.conftest import MonitorFactory, sample

from trainswitch.errors import ConfigError
from trainswitch.metrics.isolated import IsolatedEndpoint
from trainswitch.monitor import Monitor
from trainswitch.recording.records import Kind

SHARED_MEMORY = Path("/dev/shm")

TRAINER = """
import ctypes, json, sys, time, trainswitch
switch = trainswitch.attach(run=sys.argv[1], isolate=True, config=json.loads(sys.argv[2]))
print(switch.url, flush=True)
for line in sys.stdin:
    order, _, number = line.partition(" ")
    order = order.strip()
    if order == "end":
        break
    elif order == "steps":
        for _ in range(int(number)):
            switch.step(1.5, grad_norm=float("nan"), tokens=8)
            time.sleep(0.002)
    elif order == "hang":  # PyDLL, unlike CDLL, keeps the GIL
        ctypes.PyDLL(None).usleep(int(number))
    print(order, flush=True)
switch.close()
print("end", flush=True)
"""


def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


class Trainer:
    """A training process with a sidecar, which does what it is told on its standard input."""

    def __init__(self, run: str, **settings: Any) -> None:
        server = {"port": 0, "linger_seconds": 0, **settings.pop("server", {})}
        sidecar = {"hang_seconds": 1, "linger_seconds": 600, **settings.pop("sidecar", {})}
        config = {"server": server, "sidecar": sidecar, "ring_records": 1024, **settings}
        self.run = run
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, run, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.url = self.hear()
        until(lambda: self.sample("train_process_state", state="running") == 1, "the sidecar serves")
        self.sidecar = self.find_sidecar()

    def find_sidecar(self) -> psutil.Process:
        """The sidecar that runs now."""
        (sidecar,) = psutil.Process(self.process.pid).children()
        return sidecar

    def hear(self) -> str:
        """The next line that the trainer says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def order(self, text: str, *, wait: bool = True) -> None:
        """Tell the trainer to do something, and wait until it has."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        if wait:
            assert self.hear() == text.partition(" ")[0]

    def end(self) -> None:
        """Let the trainer close its monitor and exit."""
        self.order("end")
        assert self.process.wait(30) == 0

    def scrape(self) -> bytes:
        """What Prometheus would get now; empty where nobody serves."""
        try:
            with urllib.request.urlopen(self.url, timeout=5) as response:
                body: bytes = response.read()
        except OSError:
            return b""
        return body

    def sample(self, name: str, **labels: str) -> float | None:
        """One series now."""
        return sample(self.scrape(), name, **labels)

    def is_seen(self, process: str, run: str) -> bool:
        """Whether the sidecar shows these states."""
        text = self.scrape()
        return (
            sample(text, "train_process_state", state=process) == 1
            and sample(text, "train_run_state", state=run) == 1
        )

    def rings(self) -> list[Path]:
        """The run's files in shared memory."""
        return list(SHARED_MEMORY.glob(f"trainswitch.{self.run}.*"))

    def tidy(self) -> None:
        """End whatever still runs."""
        children = psutil.Process(self.process.pid).children() if self.process.poll() is None else []
        self.process.kill()
        for process in {self.sidecar, *children}:
            if process.is_running():
                process.kill()
        self.process.communicate()
        for path in self.rings():
            path.unlink()

    def alive(self) -> bool:
        """Whether the sidecar lives."""
        return self.sidecar.is_running() and self.sidecar.status() != psutil.STATUS_ZOMBIE


TrainerFactory = Callable[..., Trainer]


@pytest.fixture
def start(home: Path) -> Iterator[TrainerFactory]:
    """Starts trainers; at the end nothing of them is left."""
    trainers: list[Trainer] = []

    def make(run: str | None = None, **settings: Any) -> Trainer:
        trainers.append(Trainer(run or f"test-{uuid.uuid4().hex}", **settings))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.tidy()


def targets(home: Path, trainer: Trainer) -> list[str]:
    """Addresses that Prometheus finds for the run."""
    groups = json.loads((home / "targets" / f"{trainer.run}.0.json").read_text())
    return [address for group in groups for address in group["targets"]]


def black_boxes(home: Path, trainer: Trainer) -> list[Path]:
    """Black-box files of the run."""
    return sorted((home / "blackbox").glob(f"{trainer.run}.0.*.jsonl"))


# ── what the trainer does ─────────────────────────────────────────────────────────────────────────────


def test_it_serves_while_the_trainer_hangs_with_the_gil_held(start: TrainerFactory) -> None:
    """The run is shown as hung while nothing in the trainer can move, and as running when it steps again."""
    trainer = start()
    trainer.order("steps 20")
    assert trainer.is_seen("running", "running")
    trainer.order("hang 5000000", wait=False)
    until(lambda: trainer.is_seen("hung", "hung"), "hung")
    assert trainer.sample("train_steps_total") == 20
    assert trainer.hear() == "hang"
    trainer.order("steps 1")
    until(lambda: trainer.is_seen("running", "running"), "running again")


def test_a_suspended_trainer_is_told_from_one_that_hangs(start: TrainerFactory) -> None:
    """SIGSTOP is seen as such, and SIGCONT ends it."""
    trainer = start()
    trainer.order("steps 20")
    os.kill(trainer.process.pid, signal.SIGSTOP)
    until(lambda: trainer.is_seen("suspended", "hung"), "suspended")
    os.kill(trainer.process.pid, signal.SIGCONT)
    until(lambda: not trainer.is_seen("suspended", "hung"), "going on")
    trainer.order("steps 1")
    until(lambda: trainer.is_seen("running", "running"), "running")


def test_a_killed_trainer_leaves_its_last_steps(home: Path, start: TrainerFactory) -> None:
    """After kill -9 the endpoint says so, the last steps are in a file, and the end of the wait tidies up."""
    trainer = start(sidecar={"black_box_steps": 30})
    trainer.order("steps 50")
    trainer.process.kill()
    trainer.process.wait()
    until(lambda: trainer.is_seen("died", "crashed"), "dead")
    assert trainer.sample("train_steps_total") == 50
    assert targets(home, trainer)
    until(lambda: len(black_boxes(home, trainer)) == 1, "black box")
    about, *records = [json.loads(line) for line in black_boxes(home, trainer)[0].read_text().splitlines()]
    assert about["run"] == trainer.run
    assert about["pid"] == trainer.process.pid
    assert about["last_state"] == "running"
    assert about["records"] == len(records)
    steps = [record for record in records if record["kind"] == "step"]
    assert [step["step"] for step in steps] == list(range(21, 51))
    assert steps[-1]["loss"] == 1.5
    assert steps[-1]["grad_norm"] == "nan"
    trainer.sidecar.terminate()
    until(lambda: not trainer.alive(), "the sidecar left")
    assert targets(home, trainer) == []
    assert trainer.rings() == []


def test_after_a_death_it_leaves_when_its_time_is_over(home: Path, start: TrainerFactory) -> None:
    """linger_seconds after the death the target is withdrawn, and nothing is left."""
    trainer = start(sidecar={"linger_seconds": 0.2})
    trainer.process.kill()
    until(lambda: not trainer.alive(), "the sidecar left")
    assert targets(home, trainer) == []
    assert trainer.rings() == []
    assert len(black_boxes(home, trainer)) == 1


def test_only_the_newest_black_boxes_are_kept(home: Path, start: TrainerFactory) -> None:
    """black_box_files bounds the files of a rank, and leaves other runs' alone."""
    run = f"test-{uuid.uuid4().hex}"
    (home / "blackbox").mkdir()
    for name in (f"{run}.0.20200101T000000Z", f"{run}.0.20200102T000000Z", f"{run}.1.0.20200101T000000Z"):
        (home / "blackbox" / f"{name}.jsonl").touch()
    trainer = start(run, sidecar={"linger_seconds": 0, "black_box_files": 2})
    trainer.process.kill()
    until(lambda: not trainer.alive(), "the sidecar left")
    names = sorted(path.name for path in (home / "blackbox").iterdir())
    assert len(names) == 3
    assert f"{run}.0.20200101T000000Z.jsonl" not in names
    assert f"{run}.1.0.20200101T000000Z.jsonl" in names


def test_an_orderly_end_withdraws_and_leaves_nothing(home: Path, start: TrainerFactory) -> None:
    """close() returns when the sidecar has gone: no target, no ring, no black box."""
    trainer = start()
    trainer.order("steps 3")
    trainer.end()
    assert not trainer.alive()
    assert targets(home, trainer) == []
    assert trainer.rings() == []
    assert black_boxes(home, trainer) == []


def test_the_last_samples_of_an_orderly_end_can_be_scraped(start: TrainerFactory) -> None:
    """While somebody scrapes, the sidecar waits for one more scrape, which shows the end."""
    trainer = start(server={"linger_seconds": 60})
    trainer.order("steps 3")
    trainer.scrape()
    trainer.order("end")
    text = trainer.scrape()
    assert sample(text, "train_run_state", state="finished") == 1
    assert sample(text, "train_process_state", state="ended") == 1
    until(lambda: not trainer.alive(), "the sidecar left")
    assert trainer.rings() == []


def test_whoever_waits_for_the_trainers_output_does_not_wait_for_the_sidecar(start: TrainerFactory) -> None:
    """The sidecar of a dead trainer holds neither end of its pipes."""
    trainer = start()
    trainer.process.kill()
    trainer.process.communicate(timeout=20)
    assert trainer.alive()


# ── what is left behind ───────────────────────────────────────────────────────────────────────────────


def test_when_both_are_killed_the_next_start_cleans_up(start: TrainerFactory) -> None:
    """After kill -9 of trainer and sidecar any run's start removes the ring."""
    trainer = start()
    os.kill(trainer.process.pid, signal.SIGSTOP)  # lest it starts another sidecar in between
    trainer.sidecar.kill()
    trainer.process.kill()
    trainer.process.wait()
    assert len(trainer.rings()) == 1
    start()
    assert trainer.rings() == []


def test_another_runs_start_leaves_a_lingering_sidecar_alone(start: TrainerFactory) -> None:
    """A dead trainer's ring is in use for as long as its sidecar lives."""
    trainer = start()
    trainer.process.kill()
    until(lambda: trainer.is_seen("died", "crashed"), "dead")
    start()
    assert len(trainer.rings()) == 1
    assert trainer.is_seen("died", "crashed")


def test_the_next_session_of_a_run_takes_over(home: Path, start: TrainerFactory) -> None:
    """A run that is started again gets port and registration from the sidecar of its dead predecessor."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    first = start(server={"port": port})
    first.order("steps 3")
    first.process.kill()
    until(lambda: first.is_seen("died", "crashed"), "dead")
    second = start(first.run, server={"port": port})
    assert second.url == first.url
    assert not first.alive()
    assert second.is_seen("running", "init")
    assert targets(home, second) == [f"127.0.0.1:{port}"]
    assert len(second.rings()) == 1


def test_a_job_that_is_terminated_as_a_whole_is_reported(home: Path, start: TrainerFactory) -> None:
    """SIGTERM to sidecar and trainer at once still gives a black box, and withdraws the target."""
    trainer = start()
    trainer.order("steps 3")
    trainer.sidecar.terminate()
    trainer.process.terminate()
    until(lambda: not trainer.alive(), "the sidecar left")
    assert len(black_boxes(home, trainer)) == 1
    assert targets(home, trainer) == []
    assert trainer.rings() == []


# ── the sidecar itself ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_sidecar_that_ends_is_started_again(home: Path, start: TrainerFactory, how: signal.Signals) -> None:
    """The address stays, no step is counted twice or lost, the newest values and the state are known."""
    trainer = start()
    trainer.order("steps 50")
    assert trainer.sample("train_steps_total") == 50
    registered = targets(home, trainer)
    trainer.sidecar.send_signal(how)
    trainer.sidecar.wait(10)
    trainer.order("steps 7")
    until(lambda: trainer.sample("trainswitch_sidecar_restarts_total") == 1, "another sidecar")
    text = trainer.scrape()
    assert sample(text, "train_steps_total") == 7
    assert sample(text, "train_tokens_total") == 56
    assert sample(text, "train_step") == 57
    assert sample(text, "train_run_state", state="running") == 1
    assert sample(text, "trainswitch_records_dropped_total") == 0
    assert targets(home, trainer) == registered
    trainer.sidecar = trainer.find_sidecar()
    trainer.end()
    assert trainer.rings() == []


def test_a_state_that_the_ring_has_forgotten_is_said_again(start: TrainerFactory) -> None:
    """A new sidecar knows that the run is running, though the record of it was overwritten long ago."""
    trainer = start(ring_records=64)
    trainer.order("steps 300")
    trainer.sidecar.kill()
    until(lambda: trainer.sample("trainswitch_sidecar_restarts_total") == 1, "another sidecar")
    assert trainer.is_seen("running", "running")
    trainer.sidecar = trainer.find_sidecar()


def test_it_keeps_out_of_the_trainers_way(start: TrainerFactory) -> None:
    """It has a session, a CPU and a priority of its own, and never loads torch."""
    trainer = start()
    mine = sorted(os.sched_getaffinity(trainer.process.pid))
    assert trainer.sidecar.cpu_affinity() == (mine[-1:] if len(mine) > 1 else mine)
    assert trainer.sidecar.nice() > psutil.Process(trainer.process.pid).nice()
    assert os.getsid(trainer.sidecar.pid) == trainer.sidecar.pid
    assert not [m for m in trainer.sidecar.memory_maps() if "torch" in m.path]


def test_the_cpus_can_be_chosen(start: TrainerFactory) -> None:
    """sidecar.cpus is what it runs on."""
    cpu = min(os.sched_getaffinity(0))
    assert start(sidecar={"cpus": [cpu]}).sidecar.cpu_affinity() == [cpu]


def scrape(monitor: Monitor) -> bytes:
    """What Prometheus would get now."""
    assert monitor.url is not None
    with urllib.request.urlopen(monitor.url, timeout=20) as response:
        body: bytes = response.read()
    return body


def test_a_scrape_just_after_attach_waits_for_the_sidecar(new_monitor: MonitorFactory) -> None:
    """attach() does not wait for the sidecar, and nothing is refused or lost in the meantime."""
    monitor = new_monitor(isolate=True)
    monitor.step(2.0)
    text = scrape(monitor)
    assert sample(text, "train_steps_total") == 1
    assert sample(text, "train_process_state", state="running") == 1


@pytest.mark.parametrize("program", ["/bin/false", "/does/not/exist", ""])
def test_where_it_cannot_be_started_a_thread_serves(
    home: Path,
    new_monitor: MonitorFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
) -> None:
    """The run is watched all the same, from its first step, and one sentence says how."""
    monkeypatch.setattr(sys, "executable", program)
    monitor = new_monitor(isolate=True)
    monitor.step(2.0)
    assert sample(scrape(monitor), "train_steps_total") == 1
    assert sum("could not be started" in message for message in caplog.messages) == 1
    assert isinstance(monitor._endpoint, IsolatedEndpoint)
    assert monitor._endpoint.statistics_state()
    monitor.close()
    assert json.loads((home / "targets" / "run-1.0.json").read_text()) == []


@pytest.fixture
def isolated(new_monitor: MonitorFactory) -> IsolatedEndpoint:
    """The endpoint of a monitor that has taken 50 steps, with a sidecar that serves."""
    monitor = new_monitor(isolate=True)
    for number in range(50):
        monitor.step(2.0 + number % 3)
    assert isinstance(monitor._endpoint, IsolatedEndpoint)
    assert monitor._endpoint._settled.wait(30)
    return monitor._endpoint


def test_a_checkpoint_gets_the_statistics_from_the_sidecar(isolated: IsolatedEndpoint) -> None:
    """State goes out and comes back in, and what is no state is refused."""
    state = isolated.statistics_state()
    for _ in range(2):
        isolated._ring.append(Kind.STEP, 51, (100.0,))
        assert isolated.statistics_state() != state
        isolated.load_statistics(state)
        assert isolated.statistics_state() == state
    with pytest.raises(ValueError, match="version"):
        isolated.load_statistics({"version": -1})
    assert isolated.statistics_state() == state


def test_statistics_can_be_loaded_while_the_sidecar_is_being_started(
    isolated: IsolatedEndpoint, new_monitor: MonitorFactory
) -> None:
    """A resumed run loads them before its first step."""
    state = isolated.statistics_state()
    resumed = new_monitor(run="run-2", isolate=True)._endpoint
    resumed.load_statistics(state)
    assert resumed.statistics_state() == state


def test_a_sidecar_that_does_not_answer_costs_a_checkpoint_its_statistics_only(
    isolated: IsolatedEndpoint,
) -> None:
    """The wait is bounded, and not repeated."""
    assert isolated._process is not None
    isolated._process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            isolated.statistics_state()
        with pytest.raises(ConnectionResetError):
            isolated.statistics_state()
    finally:
        isolated._process.send_signal(signal.SIGCONT)


def test_a_sidecar_that_does_not_end_is_killed(
    home: Path,
    isolated: IsolatedEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """close() takes over from a sidecar that does not react, and withdraws the target itself."""
    process = isolated._process
    assert process is not None
    monkeypatch.setattr("trainswitch.metrics.isolated._PATIENCE_SECONDS", 1.0)
    process.send_signal(signal.SIGSTOP)
    isolated.close()
    assert process.poll() == -signal.SIGKILL
    assert "does not end" in caplog.text
    assert json.loads((home / "targets" / "run-1.0.json").read_text()) == []


def test_settings_of_a_sidecar_that_is_not_started_are_refused(home: Path) -> None:
    """A setting without effect is an error, whoever decides on isolation."""
    settings = {"sidecar": {"linger_seconds": 5}}
    with pytest.raises(ConfigError, match="sidecar has no effect"):
        Monitor(run="x", config=settings)
    with pytest.raises(ConfigError, match="sidecar has no effect"):
        Monitor(run="x", config={**settings, "isolate": True}, isolate=False)
