"""What is left of a round when the world is calm again: all that the audit judges by."""

from __future__ import annotations

import dataclasses

from benchmarks.chaos.journal import JournaledCommand
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.sender import Attempt, Episode
from benchmarks.chaos.witness import Sight


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One round."""

    plan: Plan
    run: str
    commands: list[JournaledCommand]
    """Those of the run, by the journal, in the order of their numbers."""
    outcomes: dict[str, list[str]]
    """What was decided about each alert of the run, oldest first, by the alert's name."""
    sights: list[Sight]
    """The run's effect log."""
    answered_by: dict[str, int]
    """Pid that ``status.json`` named when it first held the answer to a command, by the command's id."""
    episodes: list[Episode]
    """Those that the driver made up; in rounds with the whole stack, none."""
    attempts: list[Attempt]
    """Every webhook that the driver has posted in this round."""
    marks: set[str]
    """Receivers of all deliveries in the journal."""
    orders: list[str]
    """Ids of operator's commands that were answered with 202."""
    unanswered: list[str]
    """In rounds with the whole stack: alerts whose trouble was kept up, and had no answer in time."""
    checkpoints: set[int]
    """Steps whose checkpoint is on the disk."""
    clock_step: float
    """Largest step that a clock made, in seconds, forward or back."""
    deaths: list[str]
    """Processes under test that ended although nobody killed them, with their exit codes."""
    calm: bool
    """Whether everything settled in time."""
    seconds: float
    """How long the round took."""
