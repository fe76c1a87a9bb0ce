"""Step time watched ÷ unwatched: twins of a workload in one process, a step of the one, one of the other."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from benchmarks.overhead.watchers import Nobody, Open
from benchmarks.overhead.workload import StepTime, Workload

_ORDERS = ("off on on off", "on off off on")
ROUNDS_A_SEGMENT = 20
"""Rounds after which the twins change places: one of them may lie better in memory than the other."""


class Round(NamedTuple):
    """Two watched and two unwatched steps, close together in time."""

    step_ratio: float
    """Their whole durations, watched ÷ unwatched."""
    tail_ratio: float
    """The same, but with the unwatched steps' forward and backward pass in both.

    A watched forward and backward pass is the same code on the same numbers as long as no signal hooks into
    it, so what differs in it is the machine's noise, and that is nine tenths of all noise.
    """


def rounds(
    twins: tuple[Workload, Workload], watch: Open, home: Path, random_numbers: random.Random
) -> Generator[Round]:
    """Yield one round after the other.

    The order within a round is one of two, chosen at random; either gives both conditions the same mean
    position in time, so a linear drift of the machine cancels out. The twin that nobody watches has no hooks
    and calls PyTorch alone. What watching does in the background slows both alike, so it is not in here: see
    `benchmarks.overhead.background`.
    """
    while True:
        watched, bare = twins = twins[::-1]
        nobody = Nobody(bare)
        with watch(watched, home) as watcher:
            for workload, by in ((watched, watcher), (bare, nobody)):
                workload.step(by)
            for _ in range(ROUNDS_A_SEGMENT):
                steps: dict[str, list[StepTime]] = {"on": [], "off": []}
                for condition in random_numbers.choice(_ORDERS).split():
                    steps[condition].append(watched.step(watcher) if condition == "on" else bare.step(nobody))
                on, off = (sum(step.whole for step in steps[condition]) for condition in ("on", "off"))
                more = sum(step.tail for step in steps["on"]) - sum(step.tail for step in steps["off"])
                yield Round(on / off, 1.0 + more / off)
