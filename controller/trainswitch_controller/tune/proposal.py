"""What was found: the levels that were tried, what each did, and the limits that were chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from trainswitch.config import MonitorConfig
from trainswitch_controller.tune.judging import Measure, Severity, Slot
from trainswitch_controller.tune.labels import Trouble
from trainswitch_controller.tune.levels import Place


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """One value that could be a limit."""

    slot: Slot
    value: float
    measure: Measure
    """In the replay with the levels that are as tight."""
    chosen: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Limits for runs like those that were given."""

    runs: tuple[str, ...]
    unlabelled: tuple[str, ...]
    """Runs that the labels do not name: taken for healthy."""
    steps: int
    """Of all runs together."""
    troubles: tuple[Trouble, ...]
    places: tuple[Place, ...]
    candidates: tuple[Candidate, ...]
    allowed: Mapping[Severity, int]
    """False alarms that the limits may cause on these runs."""
    alone: Mapping[Severity, Measure]
    """What the rules do without the limits; `false_alarms` is none by definition."""
    total: Mapping[Severity, Measure]
    """What they do with them: measured by replaying the configuration."""
    config: MonitorConfig
    """With phases and limits."""
