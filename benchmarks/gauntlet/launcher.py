"""Starts the processes of a run and, where they die, starts them again, as torchrun or systemd would."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.gauntlet.faults import MEMORY_LIMIT_BYTES
from benchmarks.gauntlet.spec import Diary, Spec
from trainswitch.config import HOME_VARIABLE

MOST_RESTARTS = 2
"""Of a protected run; an unprotected one that dies has nothing that it could go on from."""
_REPOSITORY = Path(__file__).resolve().parents[2]


class Launcher:
    """One run's processes, a rank each."""

    def __init__(self, spec: Spec) -> None:
        """Prepare; nothing is started yet."""
        self.spec = spec
        self.diary = Diary(spec.folder)
        self.over = False
        """Whether nothing runs any more, and nothing will."""
        self.started_at = 0.0
        """Unix time of the newest start."""
        self.restarts = 0
        """How often it was started again for a fault."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._progress = (0, time.monotonic())
        self._path = spec.folder / "spec.json"
        self._path.write_text(spec.model_dump_json(), encoding="utf-8")

    def start(self) -> None:
        """Start all ranks."""
        self.started_at = time.time()
        self._progress = (self.diary.executed, time.monotonic())
        ranks = self.spec.recipe.ranks
        port = _free_port()
        for rank in range(ranks):
            environment = dict(os.environ)
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
                environment.pop(name, None)
            if self.spec.home is not None:
                environment[HOME_VARIABLE] = str(self.spec.home)
            if ranks > 1:
                environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            with (self.spec.folder / f"rank-{rank}.log").open("ab") as log:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.gauntlet.trainer", str(self._path)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=_REPOSITORY,
                        env=environment,
                    )
                )

    def look(self) -> None:
        """See how the processes are, and do what a launcher does."""
        if self.over:
            return
        self._enforce_memory_limit()
        codes = [process.poll() for process in self._processes]
        if any(code not in {None, 0} for code in codes):
            self.restart(f"rank {next(rank for rank, code in enumerate(codes) if code)} died")
        elif all(code == 0 for code in codes):
            self.kill()
            if self.diary.result is not None:
                self.over = True
            else:  # a healthy run that is continued
                self.start()

    def restart(self, why: str) -> None:
        """Kill what is left and start again, if that may help."""
        self.kill()
        at = self.diary.executed
        planned = bool(self.spec.leaves_at)
        if not self.spec.protected or self.restarts == MOST_RESTARTS:
            self.diary.note("over", why=why, executed=at)
            self.over = True
            return
        self.restarts += not planned
        self.diary.note("restart", why=why, executed=at)
        self.start()

    def idle_seconds(self) -> float:
        """Return how long no step has ended."""
        executed = self.diary.executed
        if executed != self._progress[0]:
            self._progress = (executed, time.monotonic())
        return time.monotonic() - self._progress[1]

    def give_up(self, why: str) -> None:
        """End the run where it stands."""
        self.kill()
        self.diary.note("over", why=why, executed=self.diary.executed)
        self.over = True

    def kill(self) -> None:
        """End the processes, stopped ones too."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes = []

    def _enforce_memory_limit(self) -> None:
        for process in self._processes:
            try:
                if psutil.Process(process.pid).memory_info().rss > MEMORY_LIMIT_BYTES:
                    process.kill()
                    process.wait()
            except psutil.NoSuchProcess:  # it has just ended
                continue


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
