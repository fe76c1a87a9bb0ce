"""The sidecar: a process beside the trainer that serves its metrics, and outlives it.

It is started by `IsolatedEndpoint` and inherits the ring, the listening socket and a line for errands. Its
own session keeps the trainer's Ctrl-C from it; being a bystander, it takes one CPU and a lower priority.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from trainswitch.config import MonitorConfig, SidecarConfig
from trainswitch.metrics.black_box import BlackBox
from trainswitch.metrics.endpoint import Endpoint
from trainswitch.metrics.exchange import answer_all
from trainswitch.metrics.isolated import READY
from trainswitch.metrics.python_lock import share_with_nobody
from trainswitch.metrics.watch import RUN_STATE_SEEN, TrainerWatch
from trainswitch.processes import ProcessState, look
from trainswitch.recording.records import Record
from trainswitch.recording.ring import RingReader
from trainswitch.version import version

logger = logging.getLogger("trainswitch")

_TICK_SECONDS = 1.0
_GRACE_SECONDS = 1.0
_NICENESS = 5


class Sidecar:
    """Serves one rank until its trainer has ended, or for a while after it has died."""

    def __init__(
        self, reader: RingReader, path: Path, descriptor: int, listener: socket.socket | None, restarts: int
    ) -> None:
        """Take the place of the sidecars before this one.

        Args:
            reader: of the trainer's ring.
            path: the ring's file, to be removed at the end.
            descriptor: the ring's.
            listener: the trainer's listening socket, if it has one.
            restarts: how many sidecars this trainer had before.
        """
        meta = reader.meta
        config = MonitorConfig.model_validate(meta["config"]).sidecar or SidecarConfig()
        self.told_to_leave = threading.Event()
        self._path = path
        self._descriptor = descriptor
        self._linger_seconds = config.linger_seconds
        self._shown: ProcessState | None = None
        self._watch = TrainerWatch(
            config, look=lambda: look(meta["pid"], meta["pid_started"]), ended=lambda: reader.ended
        )
        self._black_box = BlackBox(
            meta, config.black_box_folder, steps=config.black_box_steps, files=config.black_box_files
        )
        self._endpoint = Endpoint(
            reader, meta["local_rank"], version(), listener=listener, on_record=self._on_record
        )
        self.aggregator = self._endpoint.aggregator
        self.aggregator.metrics.counter("trainswitch_sidecar_restarts_total").inc(restarts)

    def _on_record(self, record: Record) -> None:
        self._watch.hear(record)
        self._black_box.hear(record)

    def run(self) -> None:
        """Serve; returns when there is nothing left to serve for."""
        self._look()  # before the first scrape
        self._endpoint.start()
        print(READY, flush=True)  # the trainer reads it
        end = self._attend()
        if end == "ended":
            self._endpoint.close()
        elif end == "died":
            self._bury()
            self._endpoint.close(linger_seconds=0.0)
        else:  # told to leave a living trainer, which starts another sidecar
            self._endpoint.leave()
            return
        self._path.unlink(missing_ok=True)

    def _attend(self) -> ProcessState:
        """Watch the trainer until it is gone, or this process is told to leave."""
        leave_at: float | None = None
        while True:
            seen = self._look()
            if seen in ("died", "ended"):
                return seen
            if leave_at is None and self.told_to_leave.wait(_TICK_SECONDS):
                # The same signal may have gone to the whole job: see whether the trainer ends, too.
                leave_at = time.monotonic() + _GRACE_SECONDS
            elif leave_at is not None:
                if time.monotonic() >= leave_at:
                    return seen
                time.sleep(_TICK_SECONDS)

    def _look(self) -> ProcessState:
        """Return and show what the trainer does."""
        seen = self._watch.state()
        if seen == "hung" and self._shown != "hung":
            self.aggregator.drain()  # it may have stepped since the last time
            seen = self._watch.state()
        if seen != self._shown:
            if seen in ("died", "ended"):
                self.aggregator.drain()  # its last word counts
            self.aggregator.see_from_outside(
                seen, None if self.aggregator.ended else RUN_STATE_SEEN.get(seen)
            )
            self._shown = seen
        return seen

    def _bury(self) -> None:
        """Write the black box, and go on telling of the death for a while."""
        died_at = time.time()
        try:
            path = self._black_box.write(self.aggregator.state, died_at)
        except OSError as error:
            logger.warning("cannot write a black-box file: %s.", error)
        else:
            logger.warning("the trainer has died; its last steps are in %s.", path)
        until = time.monotonic() + self._linger_seconds
        while time.monotonic() < until and not self._superseded():
            if self.told_to_leave.wait(_TICK_SECONDS):
                return

    def _superseded(self) -> bool:
        """Whether the next session of the run has removed the ring, because it needs the port."""
        return os.fstat(self._descriptor).st_nlink == 0


def main(arguments: list[str] | None = None) -> None:
    """Run the sidecar of the trainer that started this process."""
    parser = argparse.ArgumentParser(prog="trainswitch.metrics.sidecar", description=__doc__)
    parser.add_argument("path", type=Path, help="the ring's file")
    parser.add_argument("--ring", type=int, required=True, help="descriptor of the ring's file")
    parser.add_argument("--line", type=int, required=True, help="descriptor of the socket for errands")
    parser.add_argument("--listener", type=int, help="descriptor of the listening socket")
    parser.add_argument("--restarts", type=int, default=0, help="sidecars of this trainer before this one")
    options = parser.parse_args(arguments)
    _log_to_the_trainer()
    share_with_nobody()
    reader = RingReader.adopt(options.ring)
    _step_aside((MonitorConfig.model_validate(reader.meta["config"]).sidecar or SidecarConfig()).cpus)
    listener = None if options.listener is None else socket.socket(fileno=options.listener)
    sidecar = Sidecar(reader, options.path, options.ring, listener, options.restarts)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sidecar.told_to_leave.set())
    line = socket.socket(fileno=options.line)
    threading.Thread(target=answer_all, args=(line, sidecar.aggregator), daemon=True).start()
    sidecar.run()


class _TrainersLog(logging.Handler):
    """Hands lines to the trainer; drops them where it does not read, or is gone."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), self.format(record).encode() + b"\n")


def _log_to_the_trainer() -> None:
    os.set_blocking(sys.stdout.fileno(), False)
    logging.basicConfig(handlers=[_TrainersLog()], level=logging.WARNING, format="%(message)s")


def _step_aside(cpus: tuple[int, ...] | None) -> None:
    available = sorted(os.sched_getaffinity(0))
    wanted = cpus if cpus is not None else available[-1:] if len(available) > 1 else available
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        logger.warning(
            "sidecar.cpus %s cannot be used (%s): set it to some of %s; the sidecar runs on all of these.",
            list(wanted),
            error.strerror or error,
            available,
        )
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)


if __name__ == "__main__":
    main()
