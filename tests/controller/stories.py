"""Stories of runs that are told to a real Prometheus, for tests of what the controller reads there."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import shutil
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from trainswitch_controller.replay.client import PrometheusClient
from trainswitch_controller.replay.remote_write import Encoder
from trainswitch_controller.replay.series import Series, sorted_labels
from trainswitch_controller.replay.server import running_prometheus
from trainswitch_controller.replay.timeline import Grid

SECONDS = 1200
"""How long each run has been watched when its alert fires; a scrape and a step each second."""

Course = Callable[[int], float]
"""Seconds before the alert → the value then."""


@dataclasses.dataclass
class Story:
    """One run before its alert: series are added, then written."""

    url: str
    run: str
    end: float
    """When the alert fires, in Unix seconds."""
    series: list[Series] = dataclasses.field(default_factory=list)

    def add(self, name: str, course: Course | float, **labels: str) -> None:
        """Add a series whose value is a constant, or a function of the seconds before the alert."""
        one = Series(sorted_labels({"__name__": name, "run": self.run, "rank": "0", **labels}))
        for index in range(SECONDS):
            before = SECONDS - 1 - index
            value = course(before) if callable(course) else course
            if not math.isnan(value):
                one.add(index, value)
        self.series.append(one)

    def count(self, name: str, pace: Course, **labels: str) -> None:
        """Add a counter that grows by `pace` each second."""
        total = list(itertools.accumulate(pace(SECONDS - 1 - index) for index in range(SECONDS)))
        one = Series(sorted_labels({"__name__": name, "run": self.run, "rank": "0", **labels}))
        one.extend(0, array("d", total))
        self.series.append(one)

    def healthy(self) -> None:
        """Add what every run has: a step a second, from 0 to 1199, and a monitor past its warm-up."""
        self.add("train_step", lambda before: SECONDS - 1 - before)
        self.add("train_baseline_ready", 1.0)
        self.add("train_loss_excess_sigmas", 0.5)
        self.add("train_learning_rate", 1e-3, group="0")

    def write(self) -> None:
        """Store it all in Prometheus."""
        client = PrometheusClient(self.url)
        grid = Grid(round(self.end * 1000) - (SECONDS - 1) * 1000, 1000)
        client.write(Encoder(grid), self.series)
        client.close()


def jump(before: int, high: float, low: float = 0.0) -> Course:
    """Return a course that is `low` until so many seconds before the alert, and `high` from then on."""
    return lambda now: high if now <= before else low


@dataclasses.dataclass
class Prometheus:
    """A Prometheus and the stories that are told to it."""

    url: str
    jump = staticmethod(jump)
    seconds = SECONDS
    names: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def story(self, *, healthy: bool = True, ahead: float = 0.0) -> Story:
        """Begin a story about a run of its own, which ends now, or so many seconds ahead."""
        one = Story(self.url, f"run-{next(self.names)}", round(time.time() + ahead, 3))
        if healthy:
            one.healthy()
        return one

    def told(self, **courses: Course | float | Mapping[str, Course | float]) -> Story:
        """Return a healthy run's story with further series: metric=course, or metric={labels: course}."""
        one = self.story()
        for name, course in courses.items():
            one.series = [series for series in one.series if ("__name__", name) not in series.labels]
            if isinstance(course, Mapping):
                for text, each in course.items():
                    one.add(name, each, **dict(pair.split("=") for pair in text.split(",")))
            else:
                one.add(name, course)
        one.write()
        return one


@contextlib.contextmanager
def told_prometheus() -> Iterator[Prometheus]:
    """Run one until the end of the block."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.fail("prometheus is not on PATH: install it, on Debian and Ubuntu with apt.")
    with running_prometheus(Path(found)) as url:
        yield Prometheus(url)
