"""What the replay of a run says: when it was warned of, against when its loss broke."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from benchmarks.early_warning.breaks import loss_break
from trainswitch_controller.replay import Episode, ReplayedRun

BAR_ROWS = 30
BAR_SHARE = 0.8
WARNING = "TrainGradientClimbing"
_TELLING = ("warning", "critical")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One run that creeps: where its loss broke, and what was said of it first."""

    run: str
    broke: int | None
    """Row; None where it had not after the most steps."""
    first: Episode | None
    """The first warning or critical alert since the rate began to creep."""
    climbing: Episode | None
    """The first of the early warning's own, likewise."""

    @property
    def lead(self) -> int | None:
        """Rows from the first warning to the break; negative where it came after it."""
        return None if self.broke is None or self.first is None else self.broke - self.first.start_row

    @property
    def is_early(self) -> bool:
        """Whether the bar holds for this run."""
        return self.lead is not None and self.lead >= BAR_ROWS

    def as_json(self) -> dict[str, Any]:
        """Return it for ``--json``; rows count from 0."""
        return {
            "run": self.run,
            "loss_break_row": self.broke,
            "first_alert": self.first.alert if self.first else None,
            "first_alert_row": self.first.start_row if self.first else None,
            "climbing_row": self.climbing.start_row if self.climbing else None,
            "lead_rows": self.lead,
        }


def judge(replayed: ReplayedRun, creep_from: int) -> Outcome:
    """Return the outcome of a run whose rate creeps from row `creep_from` on.

    What fired before that is no warning of what had not begun.
    """
    losses = [row.loss for row in replayed.run.rows]
    numbers = [math.nan if loss is None else loss for loss in losses]
    telling = [
        episode
        for episode in replayed.episodes
        if episode.severity in _TELLING and episode.start_row >= creep_from
    ]
    climbing = [episode for episode in telling if episode.alert == WARNING]
    return Outcome(replayed.run.id, loss_break(numbers), _first(telling), _first(climbing))


def false_alarms(replayed: ReplayedRun, before: int | None = None) -> list[Episode]:
    """Return the warnings and critical alerts of a healthy run, or of one before row `before`."""
    return [
        episode
        for episode in replayed.episodes
        if episode.severity in _TELLING and (before is None or episode.start_row < before)
    ]


def needed(seeds: int) -> int:
    """Return how many of so many runs must be warned of early enough."""
    return math.ceil(BAR_SHARE * seeds)


def _first(episodes: list[Episode]) -> Episode | None:
    return min(episodes, key=lambda episode: episode.start_row, default=None)
