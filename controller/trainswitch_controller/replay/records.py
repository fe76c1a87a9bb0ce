"""A recorded run as the records that a trainer would have written, had it been watched."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from trainswitch.config import MonitorConfig, SinksConfig
from trainswitch.recording.records import FIRST_LEARNING_RATE, LABEL_BYTES, VALUES, Kind, Record, Value
from trainswitch_controller.replay.model import RecordedRun, Row
from trainswitch_controller.replay.timeline import START_MS, Timeline

_NOTHING = (0.0,) * VALUES


def description(run: RecordedRun, config: MonitorConfig) -> dict[str, Any]:
    """Return what the run's ring would have said about it.

    The length of the run is known, so that its warm-up is that of a run which says how long it will be.
    """
    statistics = config.statistics
    if statistics.total_steps is None:
        steps = max(1, sum(row.is_step for row in run.rows))
        statistics = statistics.model_copy(update={"total_steps": steps})
    config = config.model_copy(update={"statistics": statistics, "sinks": SinksConfig(), "isolate": False})
    return {
        "run": run.id,
        "rank": 0,
        "node": "replay",
        "framework": "replay",
        "world_size": 1,
        "started_at": START_MS / 1000,
        "config": config.model_dump(mode="json"),
    }


def records(run: RecordedRun, timeline: Timeline) -> Iterator[Record]:
    """Yield the records of a run in the order of time, from its first row to its end."""
    number = 0
    training = False
    typical = _typical_step_time(run)
    for position, row in enumerate(run.rows):
        at = timeline.time_of(position)
        if row.is_step:
            number = row.step if row.step is not None else number + 1
            if not training:
                training = True
                yield _record(Kind.STATE, number, at, label="running")
            yield _step(row, number, at, timeline.pace, typical)
        for metric, value in row.evaluations.items():
            label = metric.encode()[:LABEL_BYTES].decode(errors="ignore")
            yield _record(Kind.EVALUATION, number, at, (value,), label=label)
        if row.evaluations and not row.is_step:
            yield _record(Kind.PHASE, number, at, (timeline.pace,), label="evaluate")
    yield _record(Kind.STATE, number, timeline.end_of(len(run.rows)), label="finished")


def _typical_step_time(run: RecordedRun) -> float | None:
    """Return the median duration of the run's steps, where the log says how long they took."""
    known = [row.step_time_s for row in run.rows if row.step_time_s is not None and row.step_time_s > 0.0]
    return statistics.median(known) if known else None


def _step(row: Row, number: int, at: float, pace: float, typical: float | None) -> Record:
    """Return the record of a step.

    Its duration is that of the log on the replay's scale of time, on which the `typical` step takes `pace`
    seconds; so are the tokens, whose number per second stays what it was.
    """
    seconds = pace
    if typical is not None and row.step_time_s is not None and row.step_time_s > 0.0:
        seconds = pace * row.step_time_s / typical
    given: dict[int, float | None] = {
        Value.LOSS: row.loss,
        Value.GRAD_NORM: row.grad_norm,
        Value.STEP_SECONDS: seconds,
        Value.EPOCH: row.epoch,
        Value.LEARNING_RATES: 0.0,
    }
    if row.tokens_per_s is not None and math.isfinite(row.tokens_per_s):
        given[Value.TOKENS] = row.tokens_per_s * seconds
    if row.learning_rate is not None:
        given[Value.LEARNING_RATES] = 1.0
        given[FIRST_LEARNING_RATE] = row.learning_rate
    values = list(_NOTHING)
    present = 0
    for index, value in given.items():
        if value is not None:
            values[index] = value
            present |= 1 << index
    return Record(Kind.STEP, number, at, tuple(values), present, "")


def _record(kind: Kind, step: int, at: float, values: tuple[float, ...] = (), *, label: str = "") -> Record:
    return Record(kind, step, at, values + _NOTHING[len(values) :], (1 << len(values)) - 1, label)
