"""Trainers that carry out what they are told: ``python -m benchmarks.storm.trainers FOLDER RUN…``."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

from trainswitch.intervention.commands import CommandOutcome
from trainswitch.intervention.control_file import (
    StatusFile,
    commands_path,
    read_commands,
    status_path,
    write_control_file,
)

_POLL_S = 0.1
_KEPT = 200


class _Trainer:
    """The trainer's end of the protocol, without a training loop."""

    def __init__(self, folder: Path, run: str) -> None:
        self.carried_out: list[str] = []
        self._run = run
        self._commands = commands_path(folder, run)
        self._status = status_path(folder, run)
        self._seen = 0
        self._applied_seq = 0
        self._epoch = 0
        self._paused = False
        self._results: list[CommandOutcome] = []
        (folder / run).mkdir()
        self._write()

    def poll(self) -> None:
        """Carry out what is new."""
        try:
            changed = self._commands.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed == self._seen:
            return
        self._seen = changed
        found = read_commands(self._commands, self._run)
        if found is None or found.epoch < self._epoch:
            return
        self._epoch = found.epoch
        due = [command for command in found.commands if command.seq > self._applied_seq]
        for command in due:
            self.carried_out.append(command.id)
            self._applied_seq = command.seq
            if command.action in {"pause", "pause_and_snapshot", "resume"}:
                self._paused = command.action != "resume"
            self._results.append(
                CommandOutcome(
                    id=command.id,
                    seq=command.seq,
                    action=command.action,
                    result="applied",
                    step=100,
                    at=time.time(),
                    detail="carried out.",
                )
            )
        if due:
            self._write()

    def _write(self) -> None:
        write_control_file(
            self._status,
            StatusFile(
                run=self._run,
                session="storm",
                state="paused" if self._paused else "running",
                step=100,
                epoch=self._epoch,
                applied_seq=self._applied_seq,
                results=tuple(self._results[-_KEPT:]),
                updated_at=time.time(),
                pid=1,
                node="here",
            ),
        )


def _main(folder: Path, runs: list[str]) -> None:
    """Make the runs' folders, say so, serve them until SIGTERM, and print what each has carried out."""
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: ended.append(number))
    trainers = {run: _Trainer(folder, run) for run in runs}
    print("ready", flush=True)
    while not ended:
        for trainer in trainers.values():
            trainer.poll()
        time.sleep(_POLL_S)
    print(json.dumps({run: trainer.carried_out for run, trainer in trainers.items()}), flush=True)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2:])
