"""IsolatedEndpoint: the trainer's side of a sidecar: starts it, starts it again, and sees it off."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from trainswitch.config import MonitorConfig
from trainswitch.metrics.endpoint import Endpoint, open_server
from trainswitch.metrics.exchange import ask
from trainswitch.recording.ring import StepRing

logger = logging.getLogger("trainswitch")

READY = "trainswitch sidecar: ready"
"""The line with which a sidecar says that it serves; all others are for the log."""

_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 60.0
_PATIENCE_SECONDS = 5.0
_START_SECONDS = 30.0
_LAST_WORDS_SECONDS = 1.0


class IsolatedEndpoint:
    """Keeps a sidecar running that serves the rank; where none can be started, a thread serves in its place.

    The listening socket is opened here and handed on, so that the address stays the same whichever process
    serves it, and a scrape that comes while a sidecar is being started waits instead of failing.
    """

    def __init__(self, ring: StepRing, local_rank: int, version: str, on_restart: Callable[[], None]) -> None:
        """Bind the port; nothing is served yet.

        Args:
            ring: shared, not private.
            local_rank: added to the port.
            version: of trainswitch.
            on_restart: called before a sidecar is started again; what it records, the new one will find.

        Raises:
            ServerError: as `Endpoint` does.
        """
        self._ring = ring
        self._local_rank = local_rank
        self._version = version
        self._on_restart = on_restart
        self._config = MonitorConfig.model_validate(ring.meta["config"]).server
        self._server = open_server(self._config, local_rank, bytes)
        self._closing = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="trainswitch-sidecar", daemon=True)
        self._process: subprocess.Popen[str] | None = None
        self._line: socket.socket | None = None
        self._in_place: Endpoint | None = None
        self._restarts = 0

    @property
    def url(self) -> str | None:
        """Where the samples are served; None where no port could be had."""
        return self._server.url if self._server else None

    def start(self) -> None:
        """Start the sidecar; does not wait for it."""
        self._thread.start()

    # ── the sidecar's life ────────────────────────────────────────────────────────────────────────────

    def _supervise(self) -> None:
        delay = _FIRST_DELAY_SECONDS
        while True:
            began = time.monotonic()
            was_ready, end = self._run()
            if self._closing.is_set():
                if end is not None:
                    self._serve_in_place()
                return
            if not was_ready and not self._restarts:
                logger.warning(
                    "the sidecar could not be started (%s): metrics are served from a thread of the trainer, "
                    "and not after its death.",
                    end or "it left",
                )
                self._serve_in_place()
                return
            if time.monotonic() - began > _LONGEST_DELAY_SECONDS:
                delay = _FIRST_DELAY_SECONDS
            self._restarts += 1
            logger.warning(
                "the sidecar ended (%s): starting another in %g s.", end or "it was told to", delay
            )
            if self._closing.wait(delay):
                self._serve_in_place()
                return
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)
            self._on_restart()

    def _run(self) -> tuple[bool, str | None]:
        """Run a sidecar to its end.

        Returns:
            Whether it ever served, and what was wrong with its end; None where nothing was.
        """
        ours, theirs = socket.socketpair()
        try:
            process = self._process = self._spawn(theirs)
        except OSError as error:
            ours.close()
            return False, error.strerror or str(error)
        finally:
            theirs.close()
        ready = threading.Event()
        assert process.stdout is not None
        listener = threading.Thread(target=self._listen, args=(process.stdout, ready, ours), daemon=True)
        listener.start()
        code = process.wait()
        # Not for ever: a worker that was forked at the wrong moment may hold the pipe open.
        listener.join(_LAST_WORDS_SECONDS)
        self._line = None
        ours.close()
        return ready.is_set(), f"exit code {code}" if code else None

    def _listen(self, output: IO[str], ready: threading.Event, line: socket.socket) -> None:
        """Take in what a sidecar says."""
        with output:
            for text in output:
                if text.rstrip() == READY:
                    self._line = line
                    ready.set()
                    self._settled.set()
                elif text.strip():
                    logger.warning("sidecar: %s", text.rstrip())

    def _spawn(self, line: socket.socket) -> subprocess.Popen[str]:
        assert self._ring.path is not None
        if not sys.executable:
            raise OSError("this program has no Python interpreter of its own")
        descriptors = [self._ring.descriptor, line.fileno()]
        options = [
            f"--ring={self._ring.descriptor}",
            f"--line={line.fileno()}",
            f"--restarts={self._restarts}",
        ]
        if self._server is not None:
            descriptors.append(self._server.listener.fileno())
            options.append(f"--listener={self._server.listener.fileno()}")
        # Found where the trainer found it, and nothing else for lying in the working folder.
        paths = os.pathsep.join(path for path in sys.path if path)
        return subprocess.Popen(
            [sys.executable, "-m", "trainswitch.metrics.sidecar", str(self._ring.path), *options],
            env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"},
            stdin=subprocess.DEVNULL,
            # A pipe of its own: who waits for the end of the trainer's output must not wait for the sidecar.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=descriptors,
            start_new_session=True,  # Ctrl-C is for the trainer
        )

    def _serve_in_place(self) -> None:
        listener = self._server.listener if self._server is not None else None
        self._in_place = Endpoint(self._ring.reader(), self._local_rank, self._version, listener=listener)
        self._in_place.aggregator.metrics.counter("trainswitch_sidecar_restarts_total").inc(self._restarts)
        self._in_place.start()
        self._settled.set()

    # ── statistics ────────────────────────────────────────────────────────────────────────────────────

    def statistics_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the statistics; see `Aggregator.statistics_state`.

        Raises:
            OSError: the sidecar is being started again, or does not answer.
        """
        return self._in_place.statistics_state() if self._in_place is not None else self._ask(None)

    def load_statistics(self, state: Mapping[str, Any]) -> None:
        """Let the statistics go on from a checkpoint's.

        Raises:
            ValueError: `state` cannot be read; the statistics stay as they are.
        """
        self._settled.wait(_START_SECONDS)  # a resumed run loads them at once
        if self._in_place is not None:
            self._in_place.load_statistics(state)
            return
        try:
            self._ask(state)
        except OSError as error:
            raise ValueError(f"the sidecar did not take them ({error.strerror or error})") from error

    def _ask(self, load: Mapping[str, Any] | None) -> dict[str, Any]:
        line = self._line
        if line is None:
            raise ConnectionResetError("the sidecar does not run")
        try:
            return ask(line, load)
        except OSError:
            self._line = None  # a late answer would be taken for that to the next question
            raise

    # ── end ───────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Let the sidecar show the final samples, withdraw and leave; see to it where there is none.

        Waits a few seconds at most. A sidecar that may linger for longer goes on alone.
        """
        self._ring.end()
        self._closing.set()
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive() and self._config.linger_seconds > _PATIENCE_SECONDS:
            self._ring.leave()
        elif self._thread.is_alive() and self._process is not None:
            self._thread.join(_PATIENCE_SECONDS)
            if self._thread.is_alive():
                logger.warning(
                    "the sidecar does not end: it is killed, and its last samples are served from here."
                )
                self._process.kill()
                self._thread.join(_PATIENCE_SECONDS)
        if self._in_place is not None:
            self._in_place.close()
        elif self._server is not None:
            self._server.close()
