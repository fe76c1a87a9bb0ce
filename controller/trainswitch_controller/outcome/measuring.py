"""Measures outcomes in a thread of its own, by what Prometheus knows once an alert has resolved."""

from __future__ import annotations

import dataclasses
import logging
import math
import queue
import statistics
import threading
from collections.abc import Sequence

from sqlalchemy.orm import Session

from trainswitch_controller.errors import ControllerError
from trainswitch_controller.history import carried_out_at
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.onset import incidents
from trainswitch_controller.outcome.forecast import forecast
from trainswitch_controller.outcome.records import OutcomeRecord
from trainswitch_controller.prometheus_api import Line, PrometheusApi
from trainswitch_controller.records import CommandRecord, EpisodeRecord, RecoveryRecord
from trainswitch_controller.settings import Settings
from trainswitch_controller.unit import Unit

log = logging.getLogger(__name__)

COURSE_S = 1800.0
"""Seconds of the loss's course before the onset that it is forecast from."""
_POINTS = 900
_NOW_S = 30.0
"""Seconds before the alert's end over which the loss is taken."""
_NOW_STEP_S = 2.0
_FETCH_S = 10.0
_QUEUED = 100
_STOP_S = 1.0

QUERIES = {
    "loss": 'avg(train_loss{run="%s"})',
    "step": 'max(train_step{run="%s"})',
    "ranks": 'max(train_world_size{run="%s"})',
}


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What is to be measured; times in Unix seconds."""

    command_id: str
    action: str
    run: str
    onset_at: float
    applied_at: float
    ended_at: float
    stepped: bool
    """Whether the run has made a step since: a loss from before says nothing."""


def open_measuring(settings: Settings, ledger: Ledger) -> Measuring | None:
    """Return what measures the outcomes that `ledger` tells it of; None where no Prometheus is named."""
    if settings.prometheus_url is None:
        return None
    measuring = Measuring(PrometheusApi(settings.prometheus_url), ledger)
    ledger.on_recoveries = measuring.note
    return measuring


class Measuring:
    """Measures what came of interventions, one after the other."""

    def __init__(self, api: PrometheusApi, ledger: Ledger) -> None:
        self._api = api
        self._ledger = ledger
        self._queue: queue.Queue[RecoveryRecord | None] = queue.Queue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="trainswitch-outcome", daemon=True)

    def start(self) -> None:
        """Begin to measure what is noted."""
        self._thread.start()

    def stop(self) -> None:
        """Leave what is not measured yet."""
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout=_STOP_S)

    def note(self, recoveries: Sequence[RecoveryRecord]) -> None:
        """Have those that resolved measured; call it once they are committed."""
        for one in recoveries:
            if one.result == "resolved" and self._queue.qsize() < _QUEUED:
                self._queue.put(one)

    def _work(self) -> None:
        while True:
            recovery = self._queue.get()
            if recovery is None or self._stopping.is_set():
                return
            try:
                self._measure(recovery)
            except ControllerError as error:
                log.warning("command %s: its outcome is not measured: %s", recovery.command_id, error)
            except Exception:
                log.exception("command %s: its outcome is not measured", recovery.command_id)

    def _measure(self, recovery: RecoveryRecord) -> None:
        asked = self._ledger.journal.read(lambda session: self._asked(session, recovery))
        if asked is None:
            return
        before = self._lines(asked, asked.onset_at - COURSE_S, asked.onset_at, COURSE_S / _POINTS)
        after = self._lines(
            asked, max(asked.applied_at, asked.ended_at - _NOW_S), asked.ended_at, _NOW_STEP_S
        )
        ranks = _last(after.get("ranks"))
        outcome = OutcomeRecord(
            command_id=asked.command_id,
            at=self._ledger.now(),
            gpu_seconds=ranks * recovery.seconds if ranks is not None else None,
            loss_ratio=_loss_ratio(before, after) if asked.stepped else None,
        )
        if self._stopping.is_set():
            return  # the journal may be closed by now
        self._ledger.journal.write(lambda session: session.merge(outcome))
        self._ledger.metrics.outcomes.note(asked.action, outcome.gpu_seconds, outcome.loss_ratio)
        log.info(
            "command %s: %s GPU-seconds, loss %s times its forecast",
            asked.command_id,
            outcome.gpu_seconds,
            outcome.loss_ratio,
        )

    def _asked(self, session: Session, recovery: RecoveryRecord) -> _Asked | None:
        command = session.get(CommandRecord, recovery.command_id)
        if command is None:
            return None
        unit = Unit(session, self._ledger.policy, self._ledger.control_dir, recovery.at)
        applied_at = carried_out_at(unit, command)
        if applied_at is None:
            return None
        episode = session.get(EpisodeRecord, command.episode_id) if command.episode_id is not None else None
        incident = incidents.of_episode(session, episode.fingerprint, episode.starts_at) if episode else None
        onset_at = incident.onset_at if incident is not None else None
        began = episode.starts_at if episode is not None else applied_at
        return _Asked(
            command_id=command.id,
            action=command.action,
            run=command.run,
            onset_at=began if onset_at is None else onset_at,
            applied_at=applied_at,
            ended_at=applied_at + recovery.seconds,
            stepped=bool(recovery.steps),
        )

    def _lines(self, asked: _Asked, start: float, end: float, step: float) -> dict[str, Line]:
        queries = {name: query % asked.run for name, query in QUERIES.items()}
        found = self._api.ask(queries, start=start, end=end, step=step, seconds=_FETCH_S)
        return {name: lines[0] for name, lines in found.items() if lines}


def _loss_ratio(before: dict[str, Line], after: dict[str, Line]) -> float | None:
    """Return the loss after the trouble over what its course before leads to; None where nobody knows."""
    course, steps, now = before.get("loss"), before.get("step"), after.get("loss")
    step = _last(after.get("step"))
    if course is None or steps is None or now is None or step is None:
        return None
    step_at = dict(zip(steps.times, steps.values, strict=True))
    at = [step_at.get(time, math.nan) for time in course.times]
    expected = forecast(at, course.values, step)
    losses = [value for value in now.values if math.isfinite(value)]
    if expected is None or expected <= 0.0 or not losses:
        return None
    return statistics.median(losses) / expected


def _last(line: Line | None) -> float | None:
    finite = [value for value in line.values if math.isfinite(value)] if line is not None else []
    return finite[-1] if finite else None
