"""Watched against unwatched: twins of a workload in one process, a step of the one, one of the other."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from pathlib import Path

from benchmarks.overhead.watchers import Nobody, Open, Watcher
from benchmarks.overhead.workload import Workload

_ORDERS = ("off on on off", "on off off on")
ROUNDS_A_SEGMENT = 20
"""Rounds after which the twins change places: one of them may lie better in memory than the other."""


def step_ratios(
    twins: tuple[Workload, Workload], watch: Open, home: Path, random_numbers: random.Random
) -> Generator[float]:
    """Yield the duration of two watched steps over that of two unwatched ones, one round after the other."""
    for on, off in _rounds(twins, watch, home, random_numbers, Workload.step):
        yield on / off


def end_differences(
    twins: tuple[Workload, Workload], watch: Open, home: Path, random_numbers: random.Random
) -> Generator[float]:
    """Yield what watching adds to the end of a step, in seconds: to what follows the backward pass.

    A watched forward and backward pass is the same code on the same numbers as long as no signal hooks into
    it, so what differs in it is the machine's noise, and that is nine tenths of all noise. The end alone,
    done again and again with the same gradients, is measured eight times as often in the same time.
    """
    for on, off in _rounds(twins, watch, home, random_numbers, Workload.end_step):
        yield (on - off) / 2


def _rounds(
    twins: tuple[Workload, Workload],
    watch: Open,
    home: Path,
    random_numbers: random.Random,
    measure: Callable[[Workload, Watcher], float],
) -> Generator[tuple[float, float]]:
    """Yield seconds of two watched and of two unwatched measurements, close together in time.

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
                seconds = {"on": 0.0, "off": 0.0}
                for condition in random_numbers.choice(_ORDERS).split():
                    workload, by = (watched, watcher) if condition == "on" else (bare, nobody)
                    seconds[condition] += measure(workload, by)
                yield seconds["on"], seconds["off"]
