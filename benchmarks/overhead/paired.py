"""Step time watched ÷ unwatched, in one process, in blocks that alternate."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.overhead.watchers import Open, nobody
from benchmarks.overhead.workload import Workload

_ORDERS = ("off on on off", "on off off on")


def ratios(
    workload: Workload, watch: Open, home: Path, *, block_steps: int, random_numbers: random.Random
) -> Iterator[float]:
    """Yield one ratio after the other, each of four blocks in one of two orders chosen at random.

    Either order gives both conditions the same mean position in time, so a linear drift cancels
    out. A watcher attaches before its block and is gone after it: the unwatched blocks see not even an idle
    thread of it.
    """
    while True:
        seconds = {"on": 0.0, "off": 0.0}
        for condition in random_numbers.choice(_ORDERS).split():
            with (watch if condition == "on" else nobody)(workload, home) as watcher:
                seconds[condition] += workload.seconds(watcher, block_steps)
        yield seconds["on"] / seconds["off"]
