"""Plays many rounds in one world, and adds up what was found."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.chaos.audit import Findings, audit
from benchmarks.chaos.made_up import MadeUpTrouble
from benchmarks.chaos.plan import FaultKind, Plan, draw
from benchmarks.chaos.play import Played, Round
from benchmarks.chaos.processes import nursery
from benchmarks.chaos.stack import RealTrouble, Stack, run_stack
from benchmarks.chaos.world import World, create_world


@dataclasses.dataclass(frozen=True)
class Campaign:
    """Which rounds are played."""

    rounds: int
    seed: int
    first: int = 0
    """Number of the first round; what happens in a round depends on the seed and its number."""
    stack_every: int = 5
    """Each round of this number has Prometheus and Alertmanager in it; 0: none has."""

    def whole_stack(self, number: int) -> bool:
        """Whether round `number` has them."""
        return self.stack_every > 0 and number % self.stack_every == self.stack_every - 1


@dataclasses.dataclass
class Result:
    """What came of all rounds."""

    findings: Findings = dataclasses.field(default_factory=Findings)
    rounds: int = 0
    stack_rounds: int = 0
    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    commands: Counter[str] = dataclasses.field(default_factory=Counter)
    """By the state in which they ended."""
    missing_faults: tuple[str, ...] = ()
    """What this machine does not allow to be done."""
    seconds: float = 0.0


def play(home: Path, campaign: Campaign, on_round: Callable[[Plan, Played, Findings], None]) -> Result:
    """Play the rounds of `campaign` in the empty folder `home`, where every log and file stays.

    Args:
        home: an empty folder on a local disk.
        campaign: which rounds.
        on_round: hears of each round when it has been judged.

    Raises:
        TimeoutError: the controller does not start.
        CliError: Prometheus or Alertmanager is not installed.
    """
    result = Result()
    began = time.monotonic()
    numbers = range(campaign.first, campaign.first + campaign.rounds)
    with contextlib.ExitStack() as leaving:
        world = leaving.enter_context(create_world(home, leaving.enter_context(nursery())))
        stack = None
        if any(map(campaign.whole_stack, numbers)):
            stack = leaving.enter_context(run_stack(world))
        folder_faults: tuple[FaultKind, ...] = (
            ("full", "read_only", "away") if world.disk.mounted else ("away",)
        )
        if not world.disk.mounted:
            result.missing_faults = ("folder full", "folder read only")
        known: dict[str, int] = {}
        for number in numbers:
            whole = campaign.whole_stack(number)
            plan = draw(campaign.seed, number, whole_stack=whole, folder_faults=folder_faults)
            run = f"round-{number:05d}"
            played = _play_round(world, stack if whole else None, plan, run)
            found = audit(played.evidence)
            result.findings.add(found, f"seed {campaign.seed} round {number}")
            result.rounds += 1
            result.stack_rounds += whole
            result.faults += played.faults
            result.commands.update(command.state for command in played.evidence.commands)
            known[run] = len(played.evidence.commands)
            on_round(plan, played, found)
        _look_back(world, known, result.findings)
    result.seconds = time.monotonic() - began
    return result


def _play_round(world: World, stack: Stack | None, plan: Plan, run: str) -> Played:
    this = Round(world, plan, run, stack.subjects if stack is not None else {})
    if stack is None:
        return this.play(MadeUpTrouble(world, plan, run))
    return this.play(RealTrouble(stack, plan, this.trainer))


def _look_back(world: World, known: dict[str, int], findings: Findings) -> None:
    """No message of an old round, sent once more in a later one, may have caused anything."""
    for run, count in known.items():
        now = len(world.journal.commands(run))
        if now != count:
            findings.doubled.append(f"{run} had {count} commands when it ended, and has {now} now.")
