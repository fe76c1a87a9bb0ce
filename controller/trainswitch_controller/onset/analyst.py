"""Looks for the onset of each new alert in threads of its own, for which the webhook waits only briefly."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import queue
import threading
import time
from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

from trainswitch.errors import RunNameError
from trainswitch.intervention.commands import check_run_name
from trainswitch_controller.alerts import Alert
from trainswitch_controller.errors import PrometheusUnavailable
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.onset import incidents
from trainswitch_controller.onset.departures import find_departures
from trainswitch_controller.onset.fetching import Fetching, LimitReached
from trainswitch_controller.onset.signals import SHIPPED, SignalFile, load_signals
from trainswitch_controller.onset.suspects import judge
from trainswitch_controller.policy import WATCHDOG
from trainswitch_controller.prometheus_api import PrometheusApi
from trainswitch_controller.settings import Settings

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""Seconds that an alert which may lead to a rollback waits for its onset."""
IMPATIENT_S = 10.0
"""Seconds after a wait in vain in which no other one waits."""
AT_ONCE = 2
"""Threads that ask Prometheus."""
QUEUED = 100
"""Alerts that wait for one of them."""
_REMEMBERED = 10_000
_STOP_S = 1.0


@dataclasses.dataclass(frozen=True)
class _Job:
    alert: Alert
    run: str
    urgent: bool
    done: threading.Event


def open_analyst(settings: Settings, ledger: Ledger) -> Analyst | None:
    """Return what looks for onsets with these settings; None where no Prometheus is named.

    Raises:
        SignalFileError: the file of signals is not usable.
    """
    if settings.prometheus_url is None:
        log.info("prometheus_url is not set: no onset and no suspect of an alert is looked for")
        return None
    return Analyst(
        PrometheusApi(settings.prometheus_url), load_signals(settings.onset_signals or SHIPPED), ledger
    )


class Analyst:
    """Finds incidents and keeps them in the journal of `ledger`."""

    def __init__(self, api: PrometheusApi, signals: SignalFile, ledger: Ledger) -> None:
        self._signals = signals
        self._fetching = Fetching(api, signals)
        self._journal = ledger.journal
        self._now = ledger.now
        self._exported = ledger.metrics.onset
        self._rolls_back = frozenset(
            name
            for name, rule in ledger.policy.alerts.items()
            if any(rung.action == "rollback" and "step" not in rung.params for rung in rule.ladder)
        )
        self._queue: queue.PriorityQueue[tuple[int, int, _Job | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._seen: collections.OrderedDict[tuple[str, float], None] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._impatient_until = 0.0
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"trainswitch-onset-{number}", daemon=True)
            for number in range(AT_ONCE)
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Give what is being worked on a moment to come to its end, and leave what waits."""
        self._stopping.set()
        for _ in self._threads:
            self._queue.put((-1, next(self._numbers), None))
        for thread in self._threads:
            thread.join(timeout=_STOP_S)

    def prepare(self, alerts: Sequence[Alert]) -> None:
        """Have the onset of each new firing alert looked for; wait for it briefly if a rollback needs it.

        Call it before the delivery's transaction. Nothing that goes wrong here is raised.
        """
        try:
            jobs = self._enqueue(self._new(alerts))
        except Exception:
            log.exception("onsets are not looked for")
            return
        deadline = time.monotonic() + WAIT_S
        impatient = time.monotonic() < self._impatient_until
        for job in jobs:
            if job.urgent and not job.done.wait(0.0 if impatient else max(0.0, deadline - time.monotonic())):
                self._exported.count("late")
                if not impatient:
                    log.warning("the onset of %s of run %s was not found in time", job.alert.name, job.run)
                    self._impatient_until = time.monotonic() + IMPATIENT_S
                    impatient = True

    def _new(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Return the firing alerts with a usable run that neither this process nor the journal has met."""
        unseen = []
        with self._lock:
            for alert in alerts:
                key = (alert.fingerprint, alert.started)
                if _concerns_a_run(alert) and key not in self._seen:
                    self._seen[key] = None
                    unseen.append(alert)
            while len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        room = max(0, QUEUED - self._queue.qsize())
        for _ in unseen[room:]:
            self._exported.count("dropped")
        unseen = unseen[:room]
        if not unseen:
            return []

        def unknown(session: Session) -> list[Alert]:
            return [one for one in unseen if not incidents.is_known(session, one.fingerprint, one.started)]

        return self._journal.read(unknown)

    def _enqueue(self, alerts: Sequence[Alert]) -> list[_Job]:
        jobs = [
            _Job(alert, alert.labels["run"], alert.name in self._rolls_back, threading.Event())
            for alert in alerts
        ]
        for job in jobs:
            self._queue.put((0 if job.urgent else 1, next(self._numbers), job))
        return jobs

    def _work(self) -> None:
        while True:
            _, _, job = self._queue.get()
            if job is None or self._stopping.is_set():
                return
            try:
                self._analyse(job)
            except LimitReached as error:
                self._exported.count("limited")
                log.info("no onset for %s of run %s: %s", job.alert.name, job.run, error)
            except PrometheusUnavailable as error:
                self._exported.count("failed")
                log.warning("no onset for %s of run %s: %s", job.alert.name, job.run, error)
            except Exception:
                self._exported.count("failed")
                log.exception("no onset for %s of run %s", job.alert.name, job.run)
            finally:
                job.done.set()

    def _analyse(self, job: _Job) -> None:
        alert, run = job.alert, job.run
        evidence = self._fetching.evidence(run, min(alert.started, self._now()))
        departures = find_departures(self._signals, evidence, alert.started)
        finding = judge(self._signals, departures, alert.started)
        if self._stopping.is_set():
            return  # the journal may be closed by now
        stored = self._journal.write(
            lambda session: incidents.store(
                session,
                fingerprint=alert.fingerprint,
                starts_at=alert.started,
                alertname=alert.name,
                run=run,
                at=self._now(),
                finding=finding,
            )
        )
        if not stored:
            return
        self._exported.show(run, alert.name, alert.started, finding.suspects)
        self._exported.count("nothing" if finding.onset_at is None else "found")
        log.info(
            "incident %s run=%s onset_step=%s suspects=%s",
            alert.name,
            run,
            finding.onset_step,
            [f"{one['kind']} {one['name']}" for one in finding.suspects],
        )


def _concerns_a_run(alert: Alert) -> bool:
    if alert.status != "firing" or alert.name == WATCHDOG:
        return False
    try:
        check_run_name(alert.labels.get("run", ""))
    except RunNameError:
        return False
    return True
