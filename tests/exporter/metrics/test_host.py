"""What is read of the trainer's process and of its machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest
from tests.exporter.conftest import sample, samples

from trainswitch.metrics.host import HostCollector
from trainswitch.metrics.registry import MetricRegistry

_OTHER = """
import sys
for line in sys.stdin:
    exec(line)
    print(flush=True)
"""


class Trainer:
    """Another process that does what it is told."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        self.does("pass")

    def does(self, statement: str) -> None:
        """Carry out one line of Python there, and wait until it is done."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(statement + "\n")
        self._process.stdin.flush()
        self._process.stdout.readline()

    def dies(self) -> None:
        """End it by a signal; it stays a zombie until `buried`."""
        self._process.kill()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def buried(self) -> None:
        """Let its parent take notice of its end."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    """A process to watch, gone at the end of the test."""
    trainer = Trainer()
    with contextlib.ExitStack() as leaving:
        leaving.callback(trainer.buried)
        yield trainer


def watch(pid: int, *, first_on_machine: bool = False) -> tuple[MetricRegistry, HostCollector]:
    """A registry that shows process `pid`."""
    metrics = MetricRegistry({"run": "r", "rank": "0"})
    collector = HostCollector(metrics, pid, first_on_machine=first_on_machine)
    collector.start()
    return metrics, collector


def value(metrics: MetricRegistry, name: str) -> float:
    """A series that must be there."""
    found = sample(metrics.render(), name)
    assert found is not None, name
    return found


def test_another_process_is_watched_at_each_scrape(trainer: Trainer) -> None:
    """Memory, files, threads and CPU time are those of the trainer, wherever the collector runs."""
    metrics, _ = watch(trainer.pid)
    memory = value(metrics, "train_process_resident_memory_bytes")
    files = value(metrics, "train_process_open_fds")
    cpu = value(metrics, "train_process_cpu_seconds_total")
    assert value(metrics, "train_process_threads") == 1
    trainer.does("kept = bytearray(b'x') * 64_000_000")
    trainer.does("import os; opened = os.open('/dev/null', os.O_RDONLY)")
    trainer.does("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()")
    trainer.does("import time; [None for _ in iter(lambda: time.process_time() > 0.3, True)]")
    assert value(metrics, "train_process_resident_memory_bytes") - memory > 60_000_000
    assert value(metrics, "train_process_open_fds") == files + 1
    assert value(metrics, "train_process_threads") == 2
    assert value(metrics, "train_process_cpu_seconds_total") > cpu


@pytest.mark.parametrize("end", [Trainer.dies, Trainer.buried])
def test_a_process_that_ended_has_no_readings(trainer: Trainer, end: Callable[[Trainer], None]) -> None:
    """Neither as a zombie nor afterwards are the last readings shown on."""
    metrics, _ = watch(trainer.pid)
    assert value(metrics, "train_process_threads") == 1
    end(trainer)
    assert not [name for name, _ in samples(metrics.render()) if name.startswith("train_process")]


def test_a_process_number_that_was_used_again_is_not_the_trainer(trainer: Trainer) -> None:
    """A process of the same number that started at another time is a stranger."""
    metrics, collector = watch(trainer.pid)
    assert value(metrics, "train_process_threads") == 1
    assert collector._started is not None
    collector._started -= 1000
    assert sample(metrics.render(), "train_process_threads") is None


def test_a_process_that_never_was_costs_nothing_else() -> None:
    """The machine's readings are there without it."""
    metrics, _ = watch(2**22 + 1, first_on_machine=True)
    assert sample(metrics.render(), "train_process_threads") is None
    assert sample(metrics.render(), "train_host_memory_bytes", kind="total") == psutil.virtual_memory().total


def test_only_the_first_rank_of_a_machine_tells_of_the_machine() -> None:
    """Its memory and load are the same for all of its ranks."""
    first, _ = watch(os.getpid(), first_on_machine=True)
    other, _ = watch(os.getpid(), first_on_machine=False)
    total = sample(first.render(), "train_host_memory_bytes", kind="total")
    available = sample(first.render(), "train_host_memory_bytes", kind="available")
    assert total is not None
    assert available is not None
    assert 0 < available < total
    assert (sample(first.render(), "train_host_load_ratio") or 0.0) >= 0.0
    assert not [name for name, _ in samples(other.render()) if name.startswith("train_host")]


def test_a_closed_collector_says_nothing() -> None:
    """After close() its series are gone."""
    metrics, collector = watch(os.getpid(), first_on_machine=True)
    collector.close()
    assert not [
        name for name, _ in samples(metrics.render()) if name.startswith(("train_process", "train_host"))
    ]
