"""Watching rule groups from outside: how long each of their evaluations took."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.scale.server import Server

LOOK_SECONDS = 0.5
"""Between two looks, less than the shortest group's interval, so that no evaluation is overlooked."""
_RULE_LOOK_SECONDS = 10.0
_GROUP = "prometheus_rule_group_"
_WANTED = (
    f"{_GROUP}interval_seconds",
    f"{_GROUP}iterations_",
    f"{_GROUP}last_duration_seconds",
    f"{_GROUP}last_evaluation_",
    "prometheus_tsdb_head_series",
    "prometheus_tsdb_head_samples_appended_total",
)


@dataclasses.dataclass
class Group:
    """One rule group over a phase of the measurement."""

    file: str
    name: str
    interval: float
    """Seconds."""
    durations: list[float]
    """Of each evaluation seen, in seconds."""
    samples: float
    """Results of its last evaluation."""
    iterations: float
    missed: float

    @property
    def in_time(self) -> bool:
        """Whether every evaluation was over before the next was due, and none was left out."""
        return self.missed == 0 and bool(self.durations) and max(self.durations) <= self.interval

    def as_json(self) -> dict[str, Any]:
        """Return what is told of it."""
        return {
            "file": self.file,
            "group": self.name,
            "interval_s": self.interval,
            "evaluations": len(self.durations),
            "median_s": quantile(self.durations, 0.5) if self.durations else None,
            "p99_s": quantile(self.durations, 0.99) if self.durations else None,
            "max_s": max(self.durations) if self.durations else None,
            "iterations": self.iterations,
            "missed": self.missed,
            "results": self.samples,
            "in_time": self.in_time,
        }


@dataclasses.dataclass(frozen=True)
class Load:
    """What Prometheus and the generator used over a phase."""

    seconds: float
    series: float
    samples_per_second: float
    """Taken in: scraped and recorded."""
    prometheus_cores: float
    fleet_cores: float
    resident_bytes: int

    def as_json(self) -> dict[str, float]:
        """Return the numbers by name."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Phase:
    """All that was seen between two moments."""

    load: Load
    groups: list[Group]
    rules: dict[tuple[str, str], list[float]]
    """Group and rule → seconds of some of its evaluations."""


class _Page:
    """The part of Prometheus's own metrics that matters here."""

    def __init__(self, text: str) -> None:
        wanted = "\n".join(line for line in text.splitlines() if line.startswith(_WANTED)) + "\n"
        self._values: defaultdict[tuple[str, str], float] = defaultdict(float)
        """Metric and group → value; summed over labels that are of no interest here."""
        for family in text_string_to_metric_families(wanted):
            for sample in family.samples:
                self._values[sample.name, sample.labels.get("rule_group", "")] += sample.value

    def groups(self) -> list[str]:
        """Return the groups' keys, file and name."""
        return [group for name, group in self._values if name == f"{_GROUP}interval_seconds"]

    def of(self, group: str, name: str) -> float:
        """Return a group's value."""
        return self._values[f"{_GROUP}{name}", group]

    def total(self, name: str) -> float:
        """Return the value of what is not told by group."""
        return self._values[name, ""]


def watch(server: Server, fleet: psutil.Process, seconds: float) -> Phase:
    """Look at Prometheus for `seconds`."""
    began = time.monotonic()
    cpu = _cpu_seconds(server.process), _cpu_seconds(fleet)
    first = page = _Page(server.exposition())
    seen: dict[str, float] = {
        group: page.of(group, "last_evaluation_timestamp_seconds") for group in page.groups()
    }
    durations: dict[str, list[float]] = {group: [] for group in seen}
    rules: dict[tuple[str, str], list[float]] = {}
    look_at_rules = began
    while (now := time.monotonic()) < began + seconds:
        if now >= look_at_rules:
            look_at_rules = now + _RULE_LOOK_SECONDS
            for key, took in _rule_seconds(server):
                rules.setdefault(key, []).append(took)
        time.sleep(LOOK_SECONDS)
        page = _Page(server.exposition())
        for group in durations:
            at = page.of(group, "last_evaluation_timestamp_seconds")
            if at != seen[group]:
                seen[group] = at
                durations[group].append(page.of(group, "last_duration_seconds"))
    passed = time.monotonic() - began
    appended = "prometheus_tsdb_head_samples_appended_total"
    load = Load(
        seconds=passed,
        series=page.total("prometheus_tsdb_head_series"),
        samples_per_second=(page.total(appended) - first.total(appended)) / passed,
        prometheus_cores=(_cpu_seconds(server.process) - cpu[0]) / passed,
        fleet_cores=(_cpu_seconds(fleet) - cpu[1]) / passed,
        resident_bytes=server.process.memory_info().rss,
    )
    return Phase(load, [_group(one, durations[one], first, page) for one in durations], rules)


def _group(key: str, durations: list[float], first: _Page, last: _Page) -> Group:
    file, _, name = key.rpartition(";")

    def growth(name: str) -> float:
        return last.of(key, name) - first.of(key, name)

    return Group(
        file=PurePath(file).name,
        name=name,
        interval=last.of(key, "interval_seconds"),
        durations=durations,
        samples=last.of(key, "last_evaluation_samples"),
        iterations=growth("iterations_total"),
        missed=growth("iterations_missed_total"),
    )


def _rule_seconds(server: Server) -> Iterator[tuple[tuple[str, str], float]]:
    for group in server.rules():
        for number, rule in enumerate(group["rules"], start=1):
            name = f"{number}. {rule['name']}{_labelled(rule.get('labels', {}))}"
            yield (group["name"], name), float(rule["evaluationTime"])


def _labelled(labels: Mapping[str, str]) -> str:
    inside = ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name != "action")
    return f"{{{inside}}}" if inside else ""


def quantile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
