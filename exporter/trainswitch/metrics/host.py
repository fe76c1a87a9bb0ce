"""HostCollector: what the operating system knows of the trainer's process and its machine."""

from __future__ import annotations

import contextlib
import math
import os
import time

import psutil

from trainswitch.metrics.registry import MetricRegistry, Reading
from trainswitch.processes import look, start_ticks

_MACHINE_SECONDS = 5.0
"""The kernel adds its memory up over all zones, and no rule looks at less than minutes of it."""


class HostCollector:
    """Reads the trainer's process, and on the first rank of a machine the machine, at each scrape.

    The reading takes a fraction of a millisecond, so there is no thread and nothing can be stale; only the
    machine's may be a few seconds old. A process that has ended has no readings, also when another has taken
    its number.
    """

    def __init__(self, metrics: MetricRegistry, pid: int, *, first_on_machine: bool = True) -> None:
        """Prepare to watch process `pid`.

        Args:
            metrics: asks for the readings at each scrape.
            pid: of the trainer; the collector may run in another process.
            first_on_machine: whether this rank also tells of the machine.
        """
        self._metrics = metrics
        self._first_on_machine = first_on_machine
        self._open = False
        self._machine: list[Reading] = []
        self._machine_due = -math.inf
        self._started = start_ticks(pid)
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.Error:
            self._process = None

    def start(self) -> None:
        """Answer from now on."""
        self._open = True
        self._metrics.add_source(lambda: self.collect() if self._open else [])

    def close(self) -> None:
        """Answer no more."""
        self._open = False

    def collect(self) -> list[Reading]:
        """Return what can be read now; what cannot be is left out."""
        readings = self._read_process()
        if self._first_on_machine:
            now = time.monotonic()
            if now >= self._machine_due:
                self._machine, self._machine_due = _read_machine(), now + _MACHINE_SECONDS
            readings.extend(self._machine)
        return readings

    def _read_process(self) -> list[Reading]:
        process, started = self._process, self._started
        try:
            # The start is compared, so that a reused number is not taken for the trainer.
            if process is None or started is None or look(process.pid, started) == "dead":
                return []
            with process.oneshot():
                times = process.cpu_times()
                readings = [
                    Reading("train_process_resident_memory_bytes", (), process.memory_info().rss),
                    Reading("train_process_cpu_seconds_total", (), times.user + times.system),
                    Reading("train_process_threads", (), process.num_threads()),
                ]
        except psutil.Error:
            return []  # it ended meanwhile
        with contextlib.suppress(psutil.Error):  # the kernel does not tell this of another user's process
            readings.append(Reading("train_process_open_fds", (), process.num_fds()))
        return readings


def _read_machine() -> list[Reading]:
    memory = psutil.virtual_memory()
    load, _, _ = os.getloadavg()
    return [
        Reading("train_host_memory_bytes", ("total",), memory.total),
        Reading("train_host_memory_bytes", ("available",), memory.available),
        Reading("train_host_load_ratio", (), load / (os.cpu_count() or 1)),
    ]
