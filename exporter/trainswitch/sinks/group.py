"""SinkGroup: hands records to the sinks, and keeps their trouble from everything else."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from trainswitch.config import SinksConfig
from trainswitch.recording.records import Kind, Record, Value
from trainswitch.sinks.csv_file import CsvSink
from trainswitch.sinks.sink import Derived, Sink

logger = logging.getLogger("trainswitch")

RETRY_SECONDS = 30.0
MOST_WAITING = 16384
"""Records that may wait for a disk that has stopped answering; later ones are not written."""

Item = tuple[Record, Derived]


class SinkGroup:
    """All sinks of one rank.

    `take` only keeps a record in memory and may be called by any thread; `flush` and `close` write, and are
    for one thread at a time, which holds no lock that a scrape needs: a disk may take its time.
    """

    def __init__(
        self,
        sinks: Mapping[str, Callable[[], Sink]],
        *,
        interval_steps: int,
        on_error: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the sinks.

        Args:
            sinks: name → what opens it.
            interval_steps: steps of which one is written; one that is not finite always is.
            on_error: called with a sink's name each time it cannot be opened or written.
            clock: in seconds, for retries.
        """
        self._sinks = [_Supervised(name, open_, on_error, clock) for name, open_ in sinks.items()]
        self._interval = interval_steps
        self._waiting: deque[Item] = deque()

    def wants(self, record: Record) -> bool:
        """Whether `record` is to be written."""
        if not self._sinks:
            return False
        if record.kind == Kind.EVALUATION:
            return True
        if record.kind not in (Kind.STEP, Kind.LEARNING_RATE):
            return False
        return record.step % self._interval == 0 or (record.kind == Kind.STEP and not _finite(record))

    def take(self, record: Record, derived: Derived) -> None:
        """Keep a record, and what the statistics made of it, until the next `flush`."""
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((record, derived))
        else:
            for sink in self._sinks:
                sink.missed += 1

    def flush(self) -> None:
        """Write the records that wait."""
        items = []
        while self._waiting:
            items.append(self._waiting.popleft())
        for sink in self._sinks:
            sink.write(items)

    def close(self) -> None:
        """Write the records that wait, and close the sinks."""
        self.flush()
        for sink in self._sinks:
            sink.close()


class _Supervised:
    """One sink: dropped when it fails, and opened again after `RETRY_SECONDS`."""

    def __init__(
        self,
        name: str,
        open_: Callable[[], Sink],
        on_error: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self.missed = 0
        """Records that were not written."""
        self._name = name
        self._open = open_
        self._on_error = on_error
        self._clock = clock
        self._trouble: str | None = None
        self._retry_at = 0.0
        self._sink: Sink | None = None
        self._guarded(self._reopen, 0)  # now, because loading a library later would hold up the training

    def write(self, items: list[Item]) -> None:
        if not items:
            return
        if self._sink is None and self._clock() < self._retry_at:
            self.missed += len(items)
            return

        def attempt() -> None:
            sink = self._sink or self._reopen()
            for record, derived in items:
                sink.take(record, derived)
            sink.flush()

        if self._guarded(attempt, len(items)) and (self._trouble is not None or self.missed):
            logger.warning("the %s sink writes again; %d records are not in it.", self._name, self.missed)
            self._trouble = None
            self.missed = 0

    def close(self) -> None:
        if self._sink is not None:
            self._guarded(self._sink.close, 0)
            self._sink = None

    def _reopen(self) -> Sink:
        self._sink = self._open()
        return self._sink

    def _guarded(self, attempt: Callable[[], object], records: int) -> bool:
        """Return whether `attempt` worked; if not, drop the sink, count that, and say it once."""
        try:
            attempt()
        except Exception as error:  # noqa: BLE001 - whatever a sink does, the monitoring goes on
            self._sink = None
            self._retry_at = self._clock() + RETRY_SECONDS
            self.missed += records
            self._on_error(self._name)
            sentence = (
                f"the {self._name} sink cannot write: {_reason(error)}; the run is watched without it, "
                f"and it is tried again every {RETRY_SECONDS:.0f} s."
            )
            if sentence != self._trouble:
                self._trouble = sentence
                logger.warning("%s", sentence)
            return False
        return True


def open_sinks(config: SinksConfig, run: str, rank: int, on_error: Callable[[str], None]) -> SinkGroup:
    """Return the sinks that `config` names for this run and rank; none on ranks that are left out."""
    sinks: dict[str, Callable[[], Sink]] = {}
    if rank == 0 or config.all_ranks:
        place = Path(run, f"rank-{rank}")
        if config.csv is not None:
            sinks["csv"] = partial(CsvSink, config.csv.folder / place, config.max_bytes)
        if config.tensorboard is not None:
            sinks["tensorboard"] = partial(
                _open_tensorboard, config.tensorboard.folder / place, config.max_bytes
            )
    return SinkGroup(sinks, interval_steps=config.interval_steps, on_error=on_error)


def _open_tensorboard(folder: Path, max_bytes: int) -> Sink:
    from trainswitch.sinks.tensorboard import TensorBoardSink  # an optional package, and slow to load

    return TensorBoardSink(folder, max_bytes)


def _finite(record: Record) -> bool:
    return all(
        value is None or math.isfinite(value)
        for value in (record.get(Value.LOSS), record.get(Value.GRAD_NORM))
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"
