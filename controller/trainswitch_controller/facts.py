"""What is known when the answer to an alert is decided: the alert, and what the journal tells of its run."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Trouble:
    """What `decide` needs of an alert."""

    alertname: str
    run: str | None
    """The alert's ``run`` label as it came; None where it has none."""
    starts_at: float
    """Unix seconds."""
    firing: bool = True


@dataclasses.dataclass(frozen=True)
class Taken:
    """The newest rung that was taken for the same trouble of the same run."""

    rung: int
    at: float
    """When it was decided, in Unix seconds."""
    carried_out_at: float | None
    """When the trainer answered; None while it has not."""
    action: str = ""
    applied: bool = True
    """Whether the trainer did what it was told; False where it refused or failed."""

    def covers(self, starts_at: float) -> bool:
        """Return whether this rung was taken for an alert that began at `starts_at` (Unix seconds)."""
        return self.carried_out_at is None or starts_at <= self.carried_out_at


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A rollback that the trainer carried out."""

    at: float
    """When it had loaded, in Unix seconds."""
    step: int | None
    """Of the checkpoint; None where nobody knows it."""


@dataclasses.dataclass(frozen=True)
class History:
    """The journal's facts that bear on one alert; times are Unix seconds.

    An intervention counts unless it still awaits approval, or ended ``rejected``, ``expired`` or
    ``superseded``: those the trainer never carried out.
    """

    episode_resolved: bool = False
    episode_settled: bool = False
    episode_over: bool = False
    """It has not resolved, but the same alert has begun anew since, or nothing was heard of it for long."""
    awaiting: str | None = None
    """Id of a command for the same trouble that awaits approval."""
    last_taken: Taken | None = None
    tried: frozenset[int] = frozenset()
    """Rungs that were commanded or proposed for the same trouble since `last_taken` was carried out."""
    onset_step: int | None = None
    """The highest step that is surely from before the trouble's onset; None: nobody knows."""
    last_rollback: Loaded | None = None
    """The run's newest one, whatever alert or person asked for it."""
    rollbacks_in_a_row: int = 0
    """How many of the run's newest rollbacks there were, each right after the one before had loaded."""
    last_trouble_at: float | None = None
    """When another episode of the same trouble was last heard of."""
    last_intervention_at: float | None = None
    """The run's newest intervention, whatever alert caused it."""
    paused: bool = False
    """The trainer says that it is paused."""
    released_at: float | None = None
    """When the trainer last carried out a ``resume``."""
    run_interventions: tuple[float, ...] = ()
    all_interventions: tuple[float, ...] = ()
    budget_pauses: tuple[float, ...] = ()
    """When this run was paused because a budget had ended."""
