"""Processes that are killed, stopped and started again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol


class Handle(Protocol):
    """One process."""

    pid: int

    def ended(self, timeout: float = 0.0) -> int | None:
        """Return its exit code, negative for a signal; None if it runs on after `timeout` seconds."""


class Forked:
    """A function of this package in a process of its own."""

    def __init__(self, process: BaseProcess) -> None:
        process.start()
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def ended(self, timeout: float = 0.0) -> int | None:
        """Return its exit code; None if it runs on."""
        self._process.join(timeout)
        return self._process.exitcode


class Program:
    """A program with its output in a log."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self._process.pid

    def ended(self, timeout: float = 0.0) -> int | None:
        """Return its exit code; None if it runs on."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout) if timeout else self._process.poll()
        return None


class Subject:
    """Something that has one process at a time."""

    def __init__(self, name: str, launch: Callable[[], Handle]) -> None:
        self.name = name
        self.kills = 0
        self.deaths: list[int] = []
        """Exit codes of processes that nobody had killed."""
        self._launch = launch
        self._handle: Handle | None = None

    @property
    def runs(self) -> bool:
        """Whether its process lives."""
        if self._handle is None:
            return False
        code = self._handle.ended()
        if code is not None:
            self.deaths.append(code)
            self._handle = None
        return code is None

    def start(self) -> None:
        """Start it if it does not run."""
        if not self.runs:
            self._handle = self._launch()

    def kill(self) -> None:
        """End it without warning, and count that."""
        if self.runs:
            self.kills += 1
            self._kill()

    def stop(self) -> None:
        """Have it stand still."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def end(self, grace_s: float = 0.0) -> bool:
        """Let it end by itself for `grace_s` seconds, then kill it; return whether it ended by itself."""
        if self._handle is None:
            return True
        if grace_s and self._handle.ended(grace_s) is not None:
            self._handle = None
            return True
        self._kill()
        return False

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._handle is not None:
            self._handle.ended(30.0)
            self._handle = None

    def _signal(self, number: signal.Signals) -> None:
        if self._handle is not None and self._handle.ended() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._handle.pid, number)


@contextlib.contextmanager
def nursery() -> Iterator[ForkServerContext]:
    """Yield what starts functions in processes forked from one that has imported everything already.

    A start takes milliseconds instead of seconds, so there can be many.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.chaos.preload"])
    with _environment({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}):
        first = context.Process(target=_nothing)
        first.start()  # waits until everything is imported
        first.join()
    yield context


def _nothing() -> None:
    """Be started."""


@contextlib.contextmanager
def _environment(changes: Mapping[str, Any]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
