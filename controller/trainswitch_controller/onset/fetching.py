"""How often Prometheus is asked: alerts of a run share an answer, a storm is bounded, a failure respected."""

from __future__ import annotations

import collections
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Overdue  # the builtin one only since Python 3.11

from trainswitch_controller.errors import PrometheusUnavailable
from trainswitch_controller.onset.evidence import Evidence, fetch_evidence
from trainswitch_controller.onset.signals import SignalFile
from trainswitch_controller.prometheus_api import PrometheusApi

FETCH_S = 5.0
"""Seconds that all questions about one alert may take together."""
SHARED_S = 5.0
"""Alerts of a run that began so close to each other are judged by one answer."""
BREAK_S = 10.0
"""Seconds after a failure in which Prometheus is left alone."""
PER_MINUTE_OF_A_RUN = 20
PER_MINUTE = 120
_MINUTE_S = 60.0


class LimitReached(Exception):
    """Prometheus has been asked so often within the last minute that it is not asked again."""


class Fetching:
    """Fetches evidence for several threads at once."""

    def __init__(self, api: PrometheusApi, signals: SignalFile) -> None:
        self._api = api
        self._signals = signals
        self._lock = threading.Lock()
        self._shared: dict[str, tuple[float, float, Future[Evidence]]] = {}
        """Run → when it was asked for (monotonic), the moment that it ends at, and the answer."""
        self._asked: collections.deque[tuple[float, str]] = collections.deque()
        self._closed_until = 0.0

    def evidence(self, run: str, at: float) -> Evidence:
        """Return the series of `run` before `at` (Unix seconds), or before a moment close to it.

        Raises:
            LimitReached: it was asked too often.
            PrometheusUnavailable: Prometheus does not answer, or did not a moment ago.
        """
        with self._lock:
            now = time.monotonic()
            self._forget(now)
            known = self._shared.get(run)
            if known is not None and abs(known[1] - at) <= SHARED_S:
                answer, mine = known[2], False
            else:
                self._admit(run, now)
                answer, mine = Future[Evidence](), True
                self._shared[run] = (now, at, answer)
        if not mine:
            try:
                return answer.result(timeout=FETCH_S + 1.0)
            except Overdue:
                raise PrometheusUnavailable("the answer for another alert of the run is overdue.") from None
        try:
            found = fetch_evidence(self._api, self._signals, run, at, FETCH_S)
        except BaseException as error:
            answer.set_exception(error)
            with self._lock:
                self._closed_until = time.monotonic() + BREAK_S
            raise
        answer.set_result(found)
        return found

    def _admit(self, run: str, now: float) -> None:
        if now < self._closed_until:
            raise PrometheusUnavailable("Prometheus did not answer a moment ago: it is left alone meanwhile.")
        of_run = sum(1 for _, one in self._asked if one == run)
        if of_run >= PER_MINUTE_OF_A_RUN or len(self._asked) >= PER_MINUTE:
            raise LimitReached(
                f"Prometheus was asked {len(self._asked)} times in a minute, {of_run} for {run}."
            )
        self._asked.append((now, run))

    def _forget(self, now: float) -> None:
        while self._asked and self._asked[0][0] < now - _MINUTE_S:
            self._asked.popleft()
        for run in [run for run, (asked, _, _) in self._shared.items() if asked < now - _MINUTE_S]:
            del self._shared[run]
