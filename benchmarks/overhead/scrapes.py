"""What a scrape costs: the time to render, and how long it holds a step up."""

from __future__ import annotations

import itertools
import random
import statistics
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import trainswitch
from benchmarks.overhead.bars import SERIES
from benchmarks.overhead.scraper import scraping
from trainswitch.config import MonitorConfig
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.recording.records import Kind
from trainswitch.recording.ring import StepRing


def render_seconds(*, repetitions: int = 50) -> list[float]:
    """Return the processor time of each rendering of `SERIES` series, all changed, with full windows.

    Processor time, because rendering gives Python's lock away now and then, on purpose, and waits meanwhile.
    """
    config = MonitorConfig().model_dump(mode="json")
    meta = {"run": "render", "rank": 0, "node": "here", "framework": "none", "world_size": 1}
    ring = StepRing.private({**meta, "started_at": time.time(), "config": config}, 4096)
    aggregator = Aggregator(ring.reader(), "0")
    names: list[str] = []

    def evaluate(name: str) -> None:
        names.append(name)
        ring.append(Kind.EVALUATION, 0, (random.random(),), label=name)  # noqa: S311 - not a secret

    def step(number: int) -> None:
        values = (2.0 + random.random(), 1.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # noqa: S311
        ring.append(Kind.STEP, number, values)

    for number in range(1, 1001):
        step(number)
    _fill(evaluate, aggregator.render)
    found = []
    for number in range(1001, 1001 + repetitions):
        step(number)
        for name in names:
            ring.append(Kind.EVALUATION, 0, (random.random(),), label=name)  # noqa: S311 - not a secret
        aggregator.drain()
        start = time.thread_time()
        aggregator.render()
        found.append(time.thread_time() - start)
    aggregator.close()
    return found


class Stalls(NamedTuple):
    """Delays of steps, in seconds beyond the median step."""

    scraped: list[float]
    """The longest delay of a step during each scrape."""
    unscraped: list[float]
    """The same in windows as long as a scrape without one: what the machine does anyway."""


def stalls(home: Path, *, scrapes: int) -> Stalls:
    """Scrape `SERIES` series while this thread takes short steps, and return the delays."""
    targets = home / "stalls"
    config = {
        "server": {"port": 0, "linger_seconds": 0, "targets_dir": targets},
        "control": {"folder": home / "control"},
    }
    ends: list[float] = []
    with trainswitch.attach(run="stalls", config=config) as switch:
        url = switch.url
        assert url is not None
        _fill(lambda name: switch.evaluate(**{name: 1.0}), lambda: _scrape(url))
        with scraping(targets, 0.1) as windows:
            a = torch.rand(64)
            while len(windows) < scrapes:
                for _ in range(
                    500
                ):  # about a millisecond of small operations, each of which lets go of the lock
                    a = (a * a).clamp_(0.1, 1.0)
                switch.step(1.0, grad_norm=1.0)
                ends.append(time.time())
    steps = list(itertools.pairwise(ends))
    usual = statistics.median(end - begin for begin, end in steps)

    def longest(begin: float, end: float) -> float:
        during = [stop - start for start, stop in steps if start < end and stop > begin]
        return max(0.0, max(during, default=usual) - usual)

    del windows[0]  # before it, there may have been no steps
    before = [(begin - (end - begin) - 0.02, begin - 0.02) for begin, end in windows]
    return Stalls([longest(*window) for window in windows], [longest(*window) for window in before])


def _fill(evaluate: Callable[[str], object], render: Callable[[], bytes]) -> None:
    """Report evaluation metrics until there are `SERIES` series."""
    number = 0
    while (count := sum(not line.startswith(b"#") for line in render().splitlines())) < SERIES:
        for _ in range((SERIES - count) // 20 + 1):
            evaluate(f"metric_{number}")
            number += 1


def _scrape(url: str) -> bytes:
    with urllib.request.urlopen(url) as response:  # noqa: S310 - the endpoint just opened
        text: bytes = response.read()
    return text
