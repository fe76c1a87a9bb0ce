"""GpuCollector: reads a rank's cards once a second, in a thread of its own."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainswitch.metrics.catalogue import GPU_FAILURES
from trainswitch.metrics.gpu.visible import Card, choose
from trainswitch.metrics.registry import MetricRegistry, Reading

if TYPE_CHECKING:
    from trainswitch.metrics.gpu.nvml import Session

logger = logging.getLogger("trainswitch")

INTERVAL_SECONDS = 1.0
OVERDUE_SECONDS = 5.0
"""Age at which a round's readings are withdrawn: a call into a driver that is dying may never return."""
LONGEST_BACKOFF_SECONDS = 60.0

XIDS = (13, 31, 43, 45, 48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 140)
"""XID codes whose counters exist from the start, since increase() cannot see the first increment of a series
that did not exist: faults of applications (13, 31, 43, 45), and of memory, links, firmware and bus."""

_JOIN_SECONDS = 2.0
_DRIVER = Path("/proc/driver/nvidia/version")


class _Round(NamedTuple):
    """What one round found."""

    ended: float
    cards: tuple[Card, ...] = ()
    up: frozenset[Card] = frozenset()
    lasting: tuple[Reading, ...] = ()
    """What stays true however old it is: which cards there are, and what has happened to them."""
    measured: tuple[Reading, ...] = ()
    """What is only true for the moment."""
    success: bool | None = None
    """None before the first round."""


class GpuCollector:
    """Reads the cards of this rank and gives the newest round's readings to the registry.

    A card that is lost loses its readings, not its ``train_gpu_up`` (now 0) and not its XID errors; the other
    cards go on. What failed is tried again after 1 s, then 2 s, up to `LONGEST_BACKOFF_SECONDS`.
    """

    def __init__(
        self,
        metrics: MetricRegistry,
        *,
        local_rank: int = 0,
        local_ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is loaded yet.

        Args:
            metrics: asks for the readings at each scrape.
            local_rank: of this rank on its machine; which cards are its own follows from it, see `choose`.
            local_ranks: number of ranks on the machine.
            clock: monotonic seconds.
        """
        self._local_rank = local_rank
        self._local_ranks = local_ranks
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._session: Session | None = None
        self._cards: tuple[Card, ...] = ()
        self._driver = ""
        self._silent = False
        """Closed, or this rank has no card of its own: there is nothing to say, not even that it fails."""
        self._failing = False
        self._backoff = INTERVAL_SECONDS
        self._retry_at = clock()
        self._failures: Counter[str] = Counter()
        self._xids: Counter[tuple[str, int]] = Counter()
        self._xid_times: dict[tuple[str, int], float] = {}
        self._full_round_at: float | None = None
        self._reported: set[str] = set()
        self._round = _Round(clock())
        metrics.add_source(self.readings)

    def start(self) -> None:
        """Collect from a daemon thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="trainswitch-gpu", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; a thread that hangs in the driver is left behind rather than waited for."""
        self._stop.set()
        self._silent = True
        if self._thread is not None:
            self._thread.join(timeout=_JOIN_SECONDS)
            if self._thread.is_alive():
                logger.warning("the GPU driver does not return from a call: its collector is left behind.")
                return
        self._close_session()

    def _run(self) -> None:
        due = self._clock()
        while not self._stop.wait(max(0.0, due - self._clock())) and not self._silent:
            self.collect()
            due = max(due + INTERVAL_SECONDS, self._clock())
            if self._session is None:  # nothing to do before the next try
                due = max(due, self._retry_at)

    # ── what a scrape sees ────────────────────────────────────────────────────────────────────────────

    def readings(self) -> list[Reading]:
        """Return the newest round's samples; only what lasts, where that round is overdue."""
        last = self._round
        overdue = self._clock() - last.ended > OVERDUE_SECONDS
        if self._silent or (last.success is None and not overdue):
            return []
        success = last.success is True and not overdue
        return [
            *last.lasting,
            *(() if overdue else last.measured),
            Reading("train_gpu_collect_success", (), float(success)),
            *(Reading("train_gpu_up", (c.gpu,), float(c in last.up and not overdue)) for c in last.cards),
        ]

    # ── one round ─────────────────────────────────────────────────────────────────────────────────────

    def collect(self) -> None:
        """Take one round and publish it as a whole."""
        began = self._clock()
        self._failing = False
        measured: list[Reading] = []
        try:
            measured = self._take_round(due=began >= self._retry_at)
        except Exception as error:  # noqa: BLE001 - whatever happens here, training goes on
            self._fail("error", f"no GPU metrics for now: {type(error).__name__}: {error}")
            self._close_session()
        session = self._session
        up = frozenset(card for card in self._cards if session is not None and session.attached(card))
        success = bool(up) and len(up) == len(self._cards)
        if success:
            self._backoff = INTERVAL_SECONDS
            self._reported.clear()
            self._full_round_at = time.time()
        elif self._failing:
            self._retry_at = began + self._backoff
            self._backoff = min(2 * self._backoff, LONGEST_BACKOFF_SECONDS)
        ended = self._clock()
        measured.append(Reading("train_gpu_collect_seconds", (), ended - began))
        self._round = _Round(ended, self._cards, up, tuple(self._lasting()), tuple(measured), success)

    def _take_round(self, *, due: bool) -> list[Reading]:
        """Open what is not open and due to be tried, hear the events, and read the cards."""
        if self._session is None and not due:
            return []
        try:
            nvml = importlib.import_module("trainswitch.metrics.gpu.nvml")
        except ImportError:
            self._fail("package", "no GPU metrics: install nvidia-ml-py (the extra 'gpu' of trainswitch).")
            return []
        try:
            self._take_events()
            if due and (self._session is None or not all(map(self._session.attached, self._cards))):
                self._open(nvml)
                self._take_events()
            return self._measure(nvml)
        except nvml.NVMLError as error:
            self._fail("driver", f"no GPU metrics for now: NVML does not work: {error}.")
            self._close_session()
            return []

    def _open(self, nvml: Any) -> None:
        self._close_session()
        session: Session = nvml.Session()
        self._session = session
        self._driver = session.driver
        if not self._cards:
            self._choose(session)
        for card in self._cards:
            try:
                session.attach(card)
            except nvml.CardLost as error:
                self._fail("device", f"GPU {card.gpu} {card.uuid} cannot be reached: {error}.")
                continue
            if session.hears(card):
                for xid in XIDS:
                    self._xids[card.gpu, xid] += 0

    def _choose(self, session: Session) -> None:
        cards = session.cards()
        if not cards:
            self._fail("no_device", "no GPU metrics: the driver knows no card.")
            self._close_session()
            return
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._cards = tuple(choose(cards, visible, self._local_rank, self._local_ranks, session.parent_of))
        if not self._cards:
            logger.info("local rank %d has no GPU of its own to watch.", self._local_rank)
            self._silent = True
            self._close_session()

    def _take_events(self) -> None:
        if self._session is None:
            return
        for key in self._session.events():
            self._xids[key] += 1
            self._xid_times[key] = time.time()
            logger.warning("GPU %s reports XID %d.", *key)

    def _measure(self, nvml: Any) -> list[Reading]:
        measured: list[Reading] = []
        for card in self._cards:
            if self._session is None or not self._session.attached(card):
                continue
            try:
                measured.extend(self._session.read(card))
            except nvml.CardLost as error:
                self._fail("device", f"GPU {card.gpu} {card.uuid} does not answer any more: {error}.")
        return measured

    def _lasting(self) -> list[Reading]:
        readings = [
            Reading("train_gpu_info", (card.gpu, card.uuid, card.name, self._driver), 1.0)
            for card in self._cards
        ]
        for (gpu, xid), count in self._xids.items():
            readings.append(Reading("train_gpu_xid_errors_total", (gpu, str(xid)), count))
        for (gpu, xid), at in self._xid_times.items():
            readings.append(Reading("train_gpu_xid_timestamp_seconds", (gpu, str(xid)), at))
        if self._full_round_at is not None:
            readings.append(Reading("train_gpu_collect_timestamp_seconds", (), self._full_round_at))
        readings.extend(
            Reading("train_gpu_collect_failures_total", (reason,), self._failures[reason])
            for reason in GPU_FAILURES
        )
        return readings

    def _fail(self, reason: str, message: str) -> None:
        """Count a failure and say it once; on a machine without NVIDIA's driver it is no cause for worry."""
        self._failing = True
        self._failures[reason] += 1
        if message not in self._reported:
            self._reported.add(message)
            worrying = bool(self._cards) or _DRIVER.exists() or reason == "error"
            logger.log(logging.WARNING if worrying else logging.INFO, "%s", message)

    def _close_session(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()
