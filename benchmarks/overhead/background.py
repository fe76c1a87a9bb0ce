"""What watching costs beside the training thread: processor time of the monitor's threads and sidecar."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from benchmarks.overhead.watchers import Open
from benchmarks.overhead.workload import Workload


def share(workload: Workload, watch: Open, home: Path, *, seconds: float) -> float:
    """Return processor seconds a second, while nothing but watched steps is run.

    Training computes in the threads that were there before the monitor attached. What the process has used
    beyond theirs, ended threads included, is the monitor's, as is all that its child processes use. On a
    machine where training leaves no core idle, this much is taken from it at most: it is charged in full.
    """
    this = psutil.Process()
    children = set(this.children(recursive=True))
    training = {task / "schedstat": 0 for task in Path("/proc/self/task").iterdir()}
    with watch(workload, home) as watcher:
        workload.step(watcher)
        sidecars = set(this.children(recursive=True)) - children
        began = time.perf_counter()
        before = _others(training), sum(map(_used, sidecars))
        while (passed := time.perf_counter() - began) < seconds:
            workload.step(watcher)
        return (_others(training) - before[0] + sum(map(_used, sidecars)) - before[1]) / passed


def _others(threads: dict[Path, int]) -> float:
    """Return what this process has used, less what `threads` have (nanoseconds, proc(5)).

    One of them may have ended, as that of a connection to an earlier monitor: it has used what it had last.
    """
    for path in threads:
        with contextlib.suppress(FileNotFoundError):
            threads[path] = int(path.read_text().split()[0])
    return time.process_time() - sum(threads.values()) / 1e9


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
