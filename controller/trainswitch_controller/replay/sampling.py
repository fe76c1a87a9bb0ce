"""The scrapes of one run: the aggregator's samples that are needed, at each scrape's moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trainswitch.config import MonitorConfig
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.metrics.registry import Value
from trainswitch.metrics.values import Counter, Gauge, Histogram
from trainswitch.recording.records import Record
from trainswitch.recording.ring import StepRing
from trainswitch.version import version
from trainswitch_controller.replay.demand import Demand
from trainswitch_controller.replay.model import RecordedRun, Trace
from trainswitch_controller.replay.records import description, records
from trainswitch_controller.replay.series import Series, sorted_labels
from trainswitch_controller.replay.timeline import Timeline

TARGET = {"job": "trainswitch", "instance": "replay:9400", "node": "replay"}
"""What Prometheus adds to every series: the scrape job's labels and those of file_sd, where the endpoint
does not say them itself."""


class Scraped(NamedTuple):
    """What the scrapes of one run brought."""

    series: list[Series]
    """On the grid of scrapes."""
    scrapes: int
    """How many there were."""
    traces: dict[str, Trace]


def scrape_run(
    run: RecordedRun, config: MonitorConfig, demand: Demand, timeline: Timeline, traces: Sequence[str]
) -> Scraped:
    """Play a run to an aggregator, and scrape it."""
    ring = StepRing.private(description(run, config), capacity=1)  # describes the run; its records go past it
    aggregator = Aggregator(ring.reader(), version())
    traced = frozenset(_parts(name)[0] for name in traces)
    metrics = [*dict.fromkeys((*demand.metrics, *traced))]
    scraper = _Scraper(aggregator, demand, metrics, traces)
    up = Series(sorted_labels({"__name__": "up", "run": run.id, "rank": "0", **TARGET}))
    grid = timeline.scrapes
    coming = records(run, timeline)
    pending: Record | None = next(coming, None)
    index = 0
    for index, due in enumerate(timeline.due(demand.intervals)):
        now = grid.at(index) / 1000
        taken: list[Record] = []
        while pending is not None and pending.time <= now:
            taken.append(pending)
            pending = next(coming, None)
        aggregator.take(taken, demand.needed_for(due) | traced)
        scraper.scrape(index, timeline.row_at(grid.at(index), len(run.rows)))
        up.add(index, 1.0)
        if pending is None:  # the end was scraped: the target is withdrawn
            break
    scraper.end(index + 1)
    series = scraper.series
    if demand.wants("up", dict(up.labels)):
        series.append(up)
    return Scraped(series, index + 1, scraper.traces)


class _Tracing(NamedTuple):
    """A trace that is being taken."""

    metric: str
    labels: tuple[str, ...]
    rows: list[int]
    values: list[float]


class _Scraper:
    """Reads an aggregator's values again and again into series."""

    def __init__(
        self, aggregator: Aggregator, demand: Demand, metrics: Iterable[str], traces: Iterable[str]
    ) -> None:
        self._demand = demand
        self._values = {name: aggregator.metrics.values(name) for name in metrics}
        self._readings: list[_Reading] = []
        self._present: list[Value] = []
        self._traced = {name: _Tracing(*_parts(name), [], []) for name in traces}
        self.series: list[Series] = []

    def scrape(self, index: int, row: int) -> None:
        """Read what changed into the series."""
        present = [value for values in self._values.values() for value in values.values()]
        if present != self._present:
            self._look_around(present, index)
        for reading in self._readings:
            if reading.value.text is None:
                reading.read(index)
        for tracing in self._traced.values():
            traced = self._values[tracing.metric].get(tracing.labels)
            if isinstance(traced, Gauge | Counter):
                tracing.rows.append(row)
                tracing.values.append(traced.value)

    def end(self, index: int) -> None:
        """Let all series that are there stand until before scrape `index`."""
        for reading in self._readings:
            reading.hold(index)

    @property
    def traces(self) -> dict[str, Trace]:
        """What was traced, by name."""
        return {name: Trace(tuple(one.rows), tuple(one.values)) for name, one in self._traced.items()}

    def _look_around(self, present: list[Value], index: int) -> None:
        """Find the values that are new, and end the series of those that are gone."""
        known = {id(reading.value): reading for reading in self._readings}
        self._present = present
        self._readings = []
        for value in present:
            reading = known.pop(id(value), None)
            self._readings.append(self._reading(value) if reading is None else reading)
        for gone in known.values():
            gone.hold(index)

    def _reading(self, value: Value) -> _Reading:
        found = []
        for position, sample in enumerate(value.samples()):
            labels: Mapping[str, str] = {**TARGET, **sample.labels}
            if self._demand.wants(sample.name, labels):
                series = Series(sorted_labels({"__name__": sample.name, **labels}))
                found.append((position, series))
                self.series.append(series)
        return _Reading(value, found)


class _Reading:
    """One value behind some series, and those of them that are wanted.

    Values say when they change: most are the same at most scrapes, and are filled in afterwards.
    """

    __slots__ = ("_wanted", "value")

    def __init__(self, value: Value, wanted: list[tuple[int, Series]]) -> None:
        self.value = value
        self._wanted = wanted
        value.text = None

    def read(self, index: int) -> None:
        """Take the value as it is at a scrape."""
        self.value.text = ""
        if not self._wanted:
            return
        self.hold(index)
        if isinstance(self.value, Histogram):
            for position, series in self._wanted:
                series.add(index, self.value.amount(position))
        else:
            self._wanted[0][1].add(index, self.value.value)

    def hold(self, index: int) -> None:
        """Let the value stand until before a scrape."""
        for _, series in self._wanted:
            series.hold(index)


def _parts(trace: str) -> tuple[str, tuple[str, ...]]:
    name, _, labels = trace.rstrip("}").partition("{")
    return name, tuple(labels.split(",")) if labels else ()
