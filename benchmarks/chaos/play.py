"""Plays one round: chaos first, then calm, then the evidence is gathered."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from benchmarks.chaos.evidence import Evidence
from benchmarks.chaos.journal import FINAL, JournaledCommand
from benchmarks.chaos.mishaps import Mishaps, version_of
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.processes import Subject
from benchmarks.chaos.sender import Episode
from benchmarks.chaos.witness import Seen, read_sights
from benchmarks.chaos.world import Trainer, World

_TICK_S = 0.003
_LOOK_S = 0.04
_CHECKPOINT = re.compile(r"step-0*(\d+)")


@dataclasses.dataclass
class Played:
    """A round that was played."""

    evidence: Evidence
    faults: Counter[str]
    """What went wrong, by name."""


class Trouble(Protocol):
    """What makes alerts fire in a round, and ends them."""

    chaos_s: float
    """How long it goes wrong at least."""
    calm_within_s: float
    """How long everything may take to settle afterwards."""
    episodes: list[Episode]
    """Those that were made up."""

    @property
    def unanswered(self) -> list[str]:
        """Alerts that fired long enough and were not answered."""

    def turn(self, now: float) -> None:
        """Do what is due `now` seconds after the round's beginning."""

    def settle(self, commands: list[JournaledCommand]) -> bool:
        """Say whether everything has ended, and end what was answered."""


class Round:
    """One round in a world."""

    def __init__(self, world: World, plan: Plan, name: str, others: dict[str, Subject]) -> None:
        self.world = world
        self.plan = plan
        self.run = name
        self.trainer = Trainer(world, name, restores=plan.restores)
        self.subjects: dict[str, Subject] = {
            "trainer": self.trainer,
            "controller": world.controller,
            **others,
        }
        self.orders: list[str] = []
        self.answered_by: dict[str, int] = {}
        self._status_version: int | None = None
        self._still_since = 0.0

    def play(self, trouble: Trouble) -> Played:
        """Play it."""
        began = time.monotonic()
        first = len(self.world.sender.attempts)
        deaths = {name: len(subject.deaths) for name, subject in self.subjects.items()}
        mishaps = Mishaps(
            self.plan.faults,
            subjects=self.subjects,
            disk=self.world.disk,
            offsets=self.world.offsets,
            run_folder=self.world.disk.control / self.run,
            posted_at=lambda: self.world.posted_at,
        )
        try:
            self.trainer.start()
            while not mishaps.over(trouble.chaos_s):
                trouble.turn(time.monotonic() - mishaps.began)
                mishaps.turn()
                self._note_answers()
                time.sleep(_TICK_S)
            mishaps.heal()
            calm = self._calm(trouble)
        finally:
            mishaps.heal()
            self.trainer.finish()
        broken = [
            f"{name} ended by itself with {code}: see its log."
            for name, subject in self.subjects.items()
            for code in subject.deaths[deaths[name] :]
        ]
        evidence = Evidence(
            plan=self.plan,
            run=self.run,
            commands=self.world.journal.commands(self.run),
            outcomes=self.world.journal.outcomes(self.run),
            sights=read_sights(self.trainer.witness_path),
            answered_by=self.answered_by,
            episodes=trouble.episodes,
            attempts=self.world.sender.attempts[first:],
            marks=self.world.journal.marks(),
            orders=self.orders,
            unanswered=trouble.unanswered,
            checkpoints={
                int(match[1])
                for path in self.trainer.checkpoints.glob("step-*")
                if (match := _CHECKPOINT.fullmatch(path.name))
            },
            clock_step=mishaps.clock_step,
            deaths=broken,
            calm=calm,
            seconds=time.monotonic() - began,
        )
        return Played(evidence, mishaps.happened)

    def _calm(self, trouble: Trouble) -> bool:
        """Wait until everything that was begun has ended and the trainer trains on; return whether it did."""
        deadline = time.monotonic() + trouble.calm_within_s
        settled = False
        while time.monotonic() < deadline:
            for subject in self.subjects.values():
                subject.start()  # notes, too, whether one has died by itself
            self._note_answers()
            commands = self.world.journal.commands(self.run)
            settled = trouble.settle(commands)
            if all(one.state in FINAL for one in commands) and self.world.sender.idle():
                if not self._release() and settled and self._trains_on():
                    return True
            else:
                self._still_since = time.monotonic()
            time.sleep(_LOOK_S)
        return False

    def _release(self) -> bool:
        """Have an operator end a pause that nothing else ends; return whether the run is paused."""
        if self.trainer.status().get("state") != "paused":
            self._still_since = time.monotonic()
            return False
        if time.monotonic() > self._still_since + 0.4:
            order = self.world.order(self.run, "resume")
            if order is not None:
                self.orders.append(order)
                self._still_since = time.monotonic()
        return True

    def _trains_on(self) -> bool:
        before = _moves(self)
        return _within(2.0, lambda: _moves(self) >= before + 3)

    def _note_answers(self) -> None:
        """Remember which process gave an answer; later ones repeat it."""
        version = version_of(self.world.disk.control / self.run / "status.json")
        if version is None or version == self._status_version:
            return
        status = self.trainer.status()
        if status:
            self._status_version = version
            for result in status["results"]:
                self.answered_by.setdefault(result["id"], status["pid"])


def _moves(this: Round) -> int:
    return sum(sight.seen is Seen.MOVED for sight in read_sights(this.trainer.witness_path))


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
