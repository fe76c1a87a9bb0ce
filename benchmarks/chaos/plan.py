"""What is to happen in a round: drawn from a seed, so a round can be played again."""

from __future__ import annotations

import dataclasses
import random
from typing import Literal

Target = Literal["trainer", "controller", "prometheus", "alertmanager"]
FaultKind = Literal["kill", "stop", "full", "read_only", "away", "clock"]
Trigger = Literal["begin", "posted", "commands", "status", "folder"]

ACTING = ("ChaosLoss", "ChaosNorm", "ChaosLasting", "ChaosEvidence", "ChaosBack", "ChaosHold")
"""The alerts of policy.yml."""
_CLOCK_STEPS = (-3600.0, -90.0, -5.0, 5.0, 90.0, 3600.0)


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    kind: FaultKind
    target: Target | None
    """Who is killed, stopped, or has its clock stepped."""
    trigger: Trigger
    """What `after` counts from: the round's beginning, a webhook that leaves, a new version of the file, the
    beginning of a fault of the folder."""
    after: float
    """Seconds."""
    seconds: float
    """How long it lasts; for a kill, until the process is started again."""
    step: float = 0.0
    """Seconds by which a clock is set."""

    @property
    def name(self) -> str:
        """What the table of faults calls it."""
        return f"{self.kind} {self.target}" if self.target else f"folder {self.kind.replace('_', ' ')}"


@dataclasses.dataclass(frozen=True)
class PlannedEpisode:
    """One alert that begins, and how its messages travel; seconds from the round's beginning."""

    alertname: str
    begins: float
    firing: tuple[float, ...]
    """When copies of its firing message leave."""
    resolved: tuple[float, ...]
    """When copies of its resolved message leave; those of an episode that lasts until the calm leave then."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """One round."""

    number: int
    whole_stack: bool
    """Whether Prometheus and Alertmanager find the trouble; otherwise the driver plays Alertmanager."""
    restores: bool
    """Whether the trainer saves periodically and goes on from its newest checkpoint when it starts again."""
    episodes: tuple[PlannedEpisode, ...]
    faults: tuple[Fault, ...]
    replays: tuple[float, ...]
    """When old payloads of earlier rounds arrive."""


def draw(seed: int, number: int, *, whole_stack: bool, folder_faults: tuple[FaultKind, ...]) -> Plan:
    """Return round `number` of `seed`.

    Args:
        seed: of all rounds.
        number: counts from 0.
        whole_stack: whether Prometheus and Alertmanager take part.
        folder_faults: what can be done to the control folder here.
    """
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 - not a secret
    restores = chance.random() < 0.5
    if whole_stack:
        names = ["ChaosLoss"] if chance.random() < 0.5 else ["ChaosLoss", "ChaosNorm"]
    else:
        names = chance.sample(ACTING, chance.randint(1, 4))
        if chance.random() < 0.25:
            names.append(chance.choice(names))  # the same trouble again, as an episode of its own
    return Plan(
        number=number,
        whole_stack=whole_stack,
        restores=restores,
        episodes=tuple(_episode(chance, name, whole_stack=whole_stack) for name in names),
        faults=_faults(chance, whole_stack=whole_stack, folder_faults=folder_faults),
        replays=tuple(chance.uniform(0.0, 1.5) for _ in range(chance.randint(0, 3))),
    )


def _episode(chance: random.Random, name: str, *, whole_stack: bool) -> PlannedEpisode:
    begins = chance.uniform(0.0, 2.0 if whole_stack else 0.7)
    if name == "ChaosBack":
        begins += 0.5  # by then there may be a checkpoint to go back to
    if whole_stack:
        return PlannedEpisode(name, begins, (), ())
    firing = tuple(begins + chance.expovariate(4.0) for _ in range(chance.randint(1, 4)))
    ends = chance.random() < 0.25
    resolved = tuple(begins + chance.uniform(0.1, 1.5) for _ in range(chance.randint(1, 2))) if ends else ()
    return PlannedEpisode(name, begins, firing, resolved)


def _faults(
    chance: random.Random, *, whole_stack: bool, folder_faults: tuple[FaultKind, ...]
) -> tuple[Fault, ...]:
    targets: tuple[Target, ...] = ("trainer", "trainer", "controller", "controller")
    if whole_stack:
        targets = ("trainer", "controller", "prometheus", "alertmanager")
    faults = [
        _kill(chance, chance.choice(targets), whole_stack=whole_stack) for _ in range(chance.randint(1, 3))
    ]
    if chance.random() < 0.25:
        faults.extend(_both(chance))
    if chance.random() < 0.3:
        faults.append(_moment(chance, "stop", chance.choice(targets), chance.uniform(0.1, 0.8)))
    if chance.random() < 0.5:
        kind = chance.choice(folder_faults)
        faults.append(_moment(chance, kind, None, chance.uniform(0.1, 1.2)))
        if chance.random() < 0.5:  # an answer that the folder did not take, and the end of who knows it
            after, seconds = chance.uniform(0.05, 0.8), chance.uniform(0.0, 0.4)
            faults.append(Fault("kill", "trainer", "folder", after, seconds))
    if chance.random() < 0.25:
        target: Target = chance.choice(("trainer", "controller"))
        step = chance.choice(_CLOCK_STEPS)
        faults.append(_moment(chance, "clock", target, chance.uniform(0.2, 1.5), step))
    return tuple(faults)


def _both(chance: random.Random) -> tuple[Fault, Fault]:
    """Return the end of a controller that has just written, and of the trainer that has just answered.

    The trainer starts again first, and finds commands that nobody has taken back.
    """
    return (
        Fault("kill", "controller", "commands", chance.expovariate(80.0), chance.uniform(0.9, 1.6)),
        Fault("kill", "trainer", "commands", chance.uniform(0.1, 0.5), chance.uniform(0.0, 0.1)),
    )


def _kill(chance: random.Random, target: Target, *, whole_stack: bool) -> Fault:
    return _moment(
        chance,
        "kill",
        target,
        chance.uniform(0.0, 0.4),
        after=chance.uniform(0.0, 6.0) if whole_stack else None,
    )


def _moment(
    chance: random.Random,
    kind: FaultKind,
    target: Target | None,
    seconds: float,
    step: float = 0.0,
    *,
    after: float | None = None,
) -> Fault:
    """Return a fault at any time, or close behind something that happens: there the narrow windows are."""
    trigger: Trigger = chance.choice(("begin", "posted", "commands", "status"))
    if trigger == "begin":
        when = chance.uniform(0.0, 1.5) if after is None else after
    else:
        when = chance.expovariate(30.0) if trigger == "posted" else chance.expovariate(80.0)
    return Fault(kind, target, trigger, when, seconds, step)
