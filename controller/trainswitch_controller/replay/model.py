"""What goes into a replay and what comes out of it: recorded runs, and the episodes of their alerts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Progress = Callable[[str, int, int], None]
"""Hears of the work: what is being done, how much of it is done, and how much there is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a log. None is what the log leaves blank; NaN and infinities are kept as they are."""

    step: int | None = None
    """As the log numbers it; several rows may have the same."""
    epoch: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    """Before clipping, if the log says so."""
    learning_rate: float | None = None
    evaluations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Metric → value, for example ``{"eval_loss": 2.1}``."""
    tokens_per_s: float | None = None
    step_time_s: float | None = None
    """Seconds."""

    @property
    def is_step(self) -> bool:
        """Whether the row is of a training step, and not only of an evaluation."""
        said = (self.loss, self.grad_norm, self.learning_rate, self.tokens_per_s, self.step_time_s)
        return not self.evaluations or any(value is not None for value in said)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run, as a log has it."""

    id: str
    """Its name in all that comes out: a run name as `check_run_name` has it, unique within a replay."""
    path: Path
    """The file or folder that it was read from."""
    rows: tuple[Row, ...]
    """In the log's order. Row numbers count from 0 and are those of the input: a CSV file's first line
    below the header is row 0."""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the log itself says about the run (its hyperparameters); for display only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One alert of one run from the moment that it began to fire until it ceased."""

    run: str
    alert: str
    severity: str
    start_row: int
    """Row that was the newest when it began to fire."""
    end_row: int
    """Row that was the newest when it was last seen firing."""
    start: float
    """When it began to fire, in seconds of the replay since row 0."""
    end: float
    """When it was last seen firing, in the same seconds."""
    action: str | None = None
    """The rule's label ``action``: the intervention that the alert asks for."""
    value: float | None = None
    """Value of the alert's expression when it began to fire."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Intervention:
    """What the policy would have done about an episode."""

    run: str
    row: int
    at: float
    """Seconds of the replay since row 0."""
    alert: str
    outcome: str
    """As in `decide.Decision`: ``acted``, ``observed``, ``awaiting_approval``, ``cooldown``, ``budget`` …"""
    action: str | None
    params: Mapping[str, Any]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """A series of the run's exporter as the scrapes saw it."""

    rows: tuple[int, ...]
    """Row that was the newest at each scrape."""
    values: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """What became of one run."""

    run: RecordedRun
    episodes: tuple[Episode, ...]
    """By their start."""
    traces: Mapping[str, Trace] = dataclasses.field(default_factory=dict)
    """Series that were asked for by name, such as ``train_loss_center`` or ``train_grad_norm_quantile{0.5}``
    (values of the metric's own labels between braces, in the catalogue's order)."""
    interventions: tuple[Intervention, ...] = ()
    """In the order of time; empty where no policy was played."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What a replay found."""

    runs: tuple[ReplayedRun, ...]
    """In the order in which they were given."""
    pace: float
    """Seconds that each row took."""
    unjudged: tuple[str, ...] = ()
    """Alerts of the rule files that fired without saying for which run; they are in no episode."""

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """Those of all runs."""
        return tuple(episode for run in self.runs for episode in run.episodes)
