"""One number of ranks, measured: scraping alone, then with the rules, then with their long windows full."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.scale.server import SCRAPE_SECONDS, Server, ServerFailed, started
from benchmarks.scale.watch import Group, Load, Phase, quantile, watch

Progress = Callable[[str], None]

_SETTLE_SECONDS = 6 * SCRAPE_SECONDS
"""Prometheus spreads the first scrapes, and the groups their first evaluations, over an interval; nothing
tells when the last of them is over."""
_BARE_SECONDS = 60
_ALWAYS_FIRING = "Watchdog"
_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    ranks: int
    ranks_of_a_run: int
    seconds: int
    """How long is watched each time."""
    fill: int
    """Seconds between the watch with fresh and the one with full windows; 0: no second one."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one number of ranks costs at one age of the rules' windows."""

    plan: Plan
    age: float
    """Seconds since the rules were loaded, at the end of the watch."""
    bare: Load
    """Without rules."""
    phase: Phase
    samples_of_a_rank: float
    slowest_scrape: float
    """Seconds."""
    firing: dict[str, int]
    """Alerts by name. The ranks are healthy, so there should be none."""

    @property
    def late(self) -> list[Group]:
        """Groups that were not evaluated in time."""
        return [group for group in self.phase.groups if not group.in_time]

    def dearest(self, count: int) -> list[tuple[str, str, float]]:
        """Return the rules that took longest: group, rule, and median seconds."""
        found = [(*key, quantile(took, 0.5)) for key, took in self.phase.rules.items()]
        return sorted(found, key=lambda rule: -rule[2])[:count]

    def as_json(self) -> dict[str, Any]:
        """Return what is told of it."""
        return {
            "ranks": self.plan.ranks,
            "runs": self.plan.ranks // self.plan.ranks_of_a_run,
            "windows_s": round(self.age),
            "samples_of_a_rank": self.samples_of_a_rank,
            "slowest_scrape_s": self.slowest_scrape,
            "without_rules": self.bare.as_json(),
            "with_rules": self.phase.load.as_json(),
            "groups": [group.as_json() for group in self.phase.groups],
            "rules": [
                {"group": group, "rule": rule, "median_s": took}
                for group, rule, took in self.dearest(len(self.phase.rules))
            ],
            "firing": self.firing,
        }


def measure(plan: Plan, binary: Path, say: Progress) -> Iterator[Measured]:
    """Measure one number of ranks, and yield what was found with fresh windows, then with full ones.

    Raises:
        ServerFailed: Prometheus does not start or answer, or cannot scrape so many ranks.
    """
    with contextlib.ExitStack() as leaving:
        home = Path(leaving.enter_context(tempfile.TemporaryDirectory(prefix="trainswitch-scale-")))
        say(f"{plan.ranks} ranks: starting them, and Prometheus …")
        fleet = leaving.enter_context(_fleet(home / "targets", plan))
        server = leaving.enter_context(started(home, binary))
        time.sleep(_SETTLE_SECONDS)
        _scrapes(server, plan.ranks)  # where not all can be scraped, nobody should wait for the rest
        say(f"{plan.ranks} ranks: scraping only, for {_BARE_SECONDS} s …")
        bare = watch(server, fleet, _BARE_SECONDS).load
        server.load_rules()
        loaded = time.monotonic()
        time.sleep(_SETTLE_SECONDS)
        for wait in (0, plan.fill) if plan.fill else (0,):
            if wait:
                say(f"{plan.ranks} ranks: filling the long windows, for {wait} s …")
                time.sleep(wait)
            say(f"{plan.ranks} ranks: with rules, for {plan.seconds} s …")
            phase = watch(server, fleet, plan.seconds)
            yield Measured(
                plan,
                time.monotonic() - loaded,
                bare,
                phase,
                *_scrapes(server, plan.ranks),
                firing=_firing(server),
            )


@contextlib.contextmanager
def _fleet(targets: Path, plan: Plan) -> Iterator[psutil.Process]:
    arguments = [targets, plan.ranks // plan.ranks_of_a_run, plan.ranks_of_a_run]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scale.fleet", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_REPOSITORY,
    )
    assert process.stdout is not None
    try:
        if process.stdout.readline() != b"ready\n":
            raise ServerFailed("the synthetic ranks did not start; what they printed says why.")
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.communicate()


def _scrapes(server: Server, ranks: int) -> tuple[float, float]:
    """Return samples of a rank and the slowest scrape, and make sure that all ranks are scraped."""
    up = _single(server, 'count(up{job="trainswitch"} == 1)')
    if up < ranks:
        raise ServerFailed(
            f"only {up:.0f} of {ranks} ranks could be scraped, so nothing is measured: "
            "this machine is too busy or too small."
        )
    samples = _single(server, 'avg(scrape_samples_scraped{job="trainswitch"})')
    return samples, _single(server, 'max(scrape_duration_seconds{job="trainswitch"})')


def _single(server: Server, expression: str) -> float:
    return next((value for _, value in server.query(expression)), 0.0)


def _firing(server: Server) -> dict[str, int]:
    found = server.query(
        f'count by (alertname) (ALERTS{{alertstate="firing", alertname!="{_ALWAYS_FIRING}"}})'
    )
    return {labels["alertname"]: int(value) for labels, value in found}
