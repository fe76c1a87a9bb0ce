"""What watching adds to a step of the reference loop, put together from parts that noise does not drown."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.overhead import bars
from benchmarks.overhead.background import share
from benchmarks.overhead.paired import end_differences, step_ratios
from benchmarks.overhead.statistics import Median, median
from benchmarks.overhead.verdict import Verdict
from benchmarks.overhead.watchers import Nobody, Open, monitor
from benchmarks.overhead.workload import Workload


class Effort(NamedTuple):
    """How much is measured."""

    looks: tuple[int, ...]
    """Numbers of rounds after which it is seen whether they decide."""
    rounds: int
    """Where nothing hangs on the last per mille: every signal at once, and the peers."""
    background_seconds: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one way of serving costs: in a thread, or isolated."""

    name: str
    background: float
    """Processor seconds a second, beside the training thread; gradient norms at every step."""
    background_interval10: float
    """The same with gradient norms every tenth step: fewer values to take in, and to write at a scrape."""
    everything: Median
    """Step ratio with every signal at every step."""
    sampled: Median
    """The same with gradient norms at every step, from the ends of steps."""
    unsampled: Median
    """The same without any sample."""

    def overhead(self, interval: int) -> Median:
        """Return step time on ÷ off, gradient norms in one step of `interval`, the rest in one of 100 times.

        Each kind of step counts as often as it occurs, and the background in full.
        """
        rare = max(0.0, self.everything.value - 1.0) * bars.RARE_SHARE / interval
        sampled, unsampled = self.sampled, self.unsampled
        background = self.background if interval == 1 else self.background_interval10

        def together(sampled: float, unsampled: float) -> float:
            return sampled / interval + unsampled * (1.0 - 1.0 / interval) + rare + background

        return Median(
            together(sampled.value, unsampled.value),
            together(sampled.low, unsampled.low),
            together(sampled.high, unsampled.high),
            sampled.sure and unsampled.sure,
        )

    def verdicts(self) -> Iterator[Verdict]:
        """Yield the figures with their bars."""
        yield Verdict(f"overhead_{self.name}", self.overhead(1), bars.OVERHEAD)
        yield Verdict(f"overhead_{self.name}_interval10", self.overhead(10), bars.OVERHEAD_INTERVAL_10)

    def as_json(self) -> dict[str, Any]:
        """Return the parts by name."""
        parts = {name: getattr(self, name).as_json() for name in ("everything", "sampled", "unsampled")}
        backgrounds = {"background": self.background, "background_interval10": self.background_interval10}
        return {**backgrounds, **parts}


class Bench:
    """The loop, its twin, and how they are measured."""

    def __init__(self, home: Path, effort: Effort, seed: int, say: Callable[[str], None]) -> None:
        """Build the twins and let them warm up."""
        self.twins = (Workload(), Workload())
        for twin in self.twins:
            twin.step(Nobody(twin))
        self.step_seconds = min(twin.step(Nobody(twin)) for twin in self.twins)
        self._home = home
        self._effort = effort
        self._numbers = random.Random(seed)  # noqa: S311 - not a secret
        self._say = say
        self.whole_steps: dict[str, Median] = {}
        """The same by whole steps, noise and all: what `Cost` says must lie within their intervals."""

    def cost(self, *, isolate: bool) -> Cost:
        """Measure one way of serving."""
        name = "isolated" if isolate else "thread"
        every, tenth, never = (
            monitor(isolate=isolate, sampling=sampling)
            for sampling in (bars.EVERY_STEP, bars.EVERY_TENTH, bars.NO_STEP)
        )
        self._say(f"{name}: background …")
        background, background_interval10 = (
            share(self.twins[0], watch, self._home, seconds=self._effort.background_seconds)
            for watch in (every, tenth)
        )
        self._say(f"{name}: every signal at every step …")
        everything = median(self.ratios(monitor(isolate=isolate, sampling=bars.EVERYTHING)))
        none = Median(1.0, 1.0, 1.0)
        cost = Cost(
            name=name,
            background=background,
            background_interval10=background_interval10,
            everything=everything,
            sampled=none,
            unsampled=none,
        )
        self._say(f"{name}: gradient norms at every step …")
        cost = self._until_decided(cost, every, 1)
        self._say(f"{name}: no sample at any step …")
        return self._until_decided(cost, never, 10)

    def ratios(self, watch: Open) -> list[float]:
        """Return step ratios of a few rounds."""
        measured = step_ratios(self.twins, watch, self._home, self._numbers)
        with contextlib.closing(measured):
            return list(itertools.islice(measured, self._effort.rounds))

    def _until_decided(self, cost: Cost, watch: Open, interval: int) -> Cost:
        """Return `cost` with the part that `interval` needs, measured as often as it takes to judge it."""
        bar = bars.OVERHEAD if interval == 1 else bars.OVERHEAD_INTERVAL_10
        part = "sampled" if interval == 1 else "unsampled"
        self.whole_steps[f"{cost.name}_{part}"] = median(self.ratios(watch))
        found: list[float] = []
        measured = end_differences(self.twins, watch, self._home, self._numbers)
        with contextlib.closing(measured):
            for look in self._effort.looks:
                more = itertools.islice(measured, look - len(found))
                found += [1.0 + seconds / self.step_seconds for seconds in more]
                ratio = median(found)
                cost = replace(cost, sampled=ratio) if interval == 1 else replace(cost, unsampled=ratio)
                if Verdict(cost.name, cost.overhead(interval), bar).outcome != "undecided":
                    break
        return cost
