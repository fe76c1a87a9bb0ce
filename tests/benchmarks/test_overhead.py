"""The overhead benchmark measures what it says; its figures are not tested here."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.overhead import syncs
from benchmarks.overhead.statistics import CONFIDENCE, Median, median
from benchmarks.overhead.verdict import Verdict
from benchmarks.overhead.watchers import Nobody, Watcher, hooks_with_item, monitor, nobody
from benchmarks.overhead.workload import Workload


def test_the_medians_interval_is_the_narrowest_that_keeps_its_confidence() -> None:
    """For 10 values it is the 2nd to the 9th (97.9 %); for 24 the 7th to the 18th (97.7 %)."""
    assert median(range(1, 11)) == Median(5.5, 2, 9)
    assert median(range(1, 25)) == Median(12.5, 7, 18)
    assert median([3.0]) == Median(3.0, 3.0, 3.0, sure=False)


def test_the_medians_interval_holds_the_median_as_often_as_it_says() -> None:
    """In 2,000 samples of a skewed distribution, whose median is known."""
    numbers = random.Random(1)
    hits = 0
    for _ in range(2000):
        found = median([numbers.expovariate(1.0) for _ in range(16)])
        hits += found.low <= math.log(2) <= found.high
    assert hits / 2000 >= CONFIDENCE - 0.01


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(0.9, 1.0, "passed"), (0.9, 1.1, "undecided"), (1.01, 1.1, "missed")]
)
def test_a_bar_within_the_interval_is_not_passed(low: float, high: float, outcome: str) -> None:
    """Noise never passes a bar, nor do too few values."""
    assert Verdict("figure", Median(low, low, high), 1.0).outcome == outcome
    assert Verdict("figure", Median(low, low, high, sure=False), 1.0).outcome == "not judged"


def test_a_peer_that_reads_every_step_is_counted_and_the_monitor_is_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counter of syncs sees each ``.item()`` of a peer; with every probe on, the monitor adds none."""
    monkeypatch.setattr(syncs, "STEPS", 3)
    assert syncs.added_syncs(home) == 0.0
    with syncs._pretended_device() as pinned:
        added = syncs._scalar_reads(hooks_with_item, home, pinned) - syncs._scalar_reads(nobody, home, pinned)
    assert added > 3 * 10


def test_a_wait_that_the_monitor_added_would_be_counted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading the loss where it is, as a careless probe would, counts once a step."""
    monkeypatch.setattr(syncs, "STEPS", 3)

    class Careless(Nobody):
        def step(self, loss, norm, tokens):  # type: ignore[no-untyped-def]
            float(loss.detach())

    @contextlib.contextmanager
    def careless(workload: Workload, _home: Path) -> Iterator[Watcher]:
        yield Careless(workload)

    with syncs._pretended_device() as pinned:
        added = syncs._scalar_reads(careless, home, pinned) - syncs._scalar_reads(nobody, home, pinned)
    assert added == 3


def test_the_monitor_leaves_the_loop_as_it_was(home: Path) -> None:
    """After a watched block no hook is left, so an unwatched one is truly unwatched."""
    workload = Workload(shape=syncs._SMALL, batch=2)
    with monitor(isolate=False, sampling={"layers": 1})(workload, home) as watcher:
        workload.step(watcher)
    assert not workload.optimizer._optimizer_step_pre_hooks
    assert not workload.optimizer._optimizer_step_post_hooks
