"""The Prometheus registry that the catalogue describes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from trainswitch.metrics.catalogue import CATALOGUE, Metric
from trainswitch.metrics.exposition import Exposition
from trainswitch.metrics.values import Counter, Gauge, Histogram

Value = Gauge | Counter | Histogram


class Reading(NamedTuple):
    """One sample that a collector read."""

    name: str
    """Of a gauge or counter of the catalogue."""
    labels: tuple[str, ...]
    """Values of the metric's own labels, in the catalogue's order."""
    value: float


Source = Callable[[], Iterable[Reading]]


class MetricRegistry:
    """All metrics of the catalogue for one run and rank; for one thread at a time."""

    def __init__(self, common: Mapping[str, str], catalogue: Iterable[Metric] = CATALOGUE) -> None:
        """Create all metrics, and the series that are known already.

        Args:
            common: values of the labels that every series carries.
            catalogue: the metrics.
        """
        self.registry = CollectorRegistry()
        self._exposition = Exposition()
        self._common = tuple(common.values())
        catalogue = tuple(catalogue)
        self._metrics = {metric.name: metric for metric in catalogue if not metric.collected}
        self._values: dict[str, dict[tuple[str, ...], Any]] = {name: {} for name in self._metrics}
        self._collected = _Collected(self._common, [metric for metric in catalogue if metric.collected])
        self._measured = _Measured(self._metrics, self._values)
        self.registry.register(self._measured)
        self.registry.register(self._collected)
        for metric in self._metrics.values():
            known = [values for _, values in metric.labels]
            if metric.kind != "gauge" and all(known):  # increase() cannot see a series' first increment
                for values in itertools.product(*known):
                    self._add(metric.name, values)

    def _add(self, name: str, labels: tuple[str, ...]) -> Any:
        """Begin a series, and return its value, of the type that its metric has."""
        value = self._values[name][labels] = self._create(self._metrics[name], labels)
        return value

    def _create(self, metric: Metric, labels: tuple[str, ...]) -> Value:
        named = dict(zip(metric.label_names, (*self._common, *labels), strict=True))
        if metric.kind == "histogram":
            return Histogram(metric.name, named, metric.buckets)
        return (Counter if metric.kind == "counter" else Gauge)(metric.name, named)

    def gauge(self, name: str, *labels: str) -> Gauge:
        """Return the gauge `name` with the values of its own labels."""
        gauge: Gauge = self._values[name].get(labels) or self._add(name, labels)
        return gauge

    def counter(self, name: str, *labels: str) -> Counter:
        """Return the counter `name` with the values of its own labels."""
        counter: Counter = self._values[name].get(labels) or self._add(name, labels)
        return counter

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return the histogram `name` with the values of its own labels."""
        histogram: Histogram = self._values[name].get(labels) or self._add(name, labels)
        return histogram

    def values(self, name: str) -> Mapping[tuple[str, ...], Value]:
        """Return a live view of a metric's values by its own labels; empty for one that a source collects."""
        return self._values.get(name, {})

    def remove(self, name: str, *labels: str) -> None:
        """Let the series of `name` with the values of its own labels end."""
        del self._values[name][labels]

    def reset_counts(self) -> None:
        """Set all counters and histograms to zero; their series stay. Ones looked up before are void."""
        for name, values in self._values.items():
            if self._metrics[name].kind != "gauge":
                for labels in values:
                    values[labels] = self._create(self._metrics[name], labels)

    def add_source(self, source: Source) -> None:
        """Ask `source`, at each scrape, for the samples of metrics that the catalogue marks as collected.

        What a source leaves out is absent from that scrape, so nothing stale outlives its reading. It is
        called while the scrape waits: it must hand over what it has, not go and measure for long.
        """
        self._collected.sources.append(source)

    def render(self) -> bytes:
        """Return all samples in Prometheus's text format."""
        measured = self._exposition.render(self._measured.values())
        return (measured + self._exposition.render_readings(self._collected.read())).encode()


class _Measured(Collector):
    """The metrics whose values the aggregator keeps."""

    def __init__(
        self, metrics: Mapping[str, Metric], values: Mapping[str, Mapping[tuple[str, ...], Value]]
    ) -> None:
        self._metrics = metrics
        self._values = values
        self._families = {name: _family(metric) for name, metric in metrics.items()}

    def describe(self) -> Iterable[Family]:
        return self._families.values()

    def collect(self) -> Iterable[Family]:
        for name, metric in self._metrics.items():
            family = _family(metric)
            for value in self._values[name].values():
                family.samples.extend(value.samples())
            yield family

    def values(self) -> Iterator[tuple[Family, Iterable[Value]]]:
        """Yield each family, without samples, and the values behind its series."""
        for name, family in self._families.items():
            yield family, self._values[name].values()


class _Collected(Collector):
    """The metrics whose samples come from sources."""

    def __init__(self, common: tuple[str, ...], metrics: Iterable[Metric]) -> None:
        self.sources: list[Source] = []
        self._common = common
        self._metrics = {metric.name: metric for metric in metrics}
        self._families = {name: _family(metric) for name, metric in self._metrics.items()}
        self._samples: dict[tuple[str, tuple[str, ...]], Sample] = {}

    def describe(self) -> Iterable[Family]:
        return self._families.values()

    def collect(self) -> Iterable[Family]:
        for family, readings in self.read():
            full = Family(family.name, family.documentation, family.type)
            full.samples = [one._replace(value=value) for one, value in readings]
            yield full

    def read(self) -> Iterable[tuple[Family, list[tuple[Sample, float]]]]:
        """Ask all sources; return each family that has samples, without them, and its samples' values."""
        found: dict[str, list[tuple[Sample, float]]] = {}
        for source in self.sources:
            for name, labels, value in source():
                sample = self._samples.get((name, labels))
                if sample is None:
                    sample = self._samples[name, labels] = self._sample(name, labels)
                found.setdefault(name, []).append((sample, value))
        return [(self._families[name], readings) for name, readings in found.items()]

    def _sample(self, name: str, labels: tuple[str, ...]) -> Sample:
        named = dict(zip(self._metrics[name].label_names, (*self._common, *labels), strict=True))
        return Sample(name, named, 0.0)


def _family(metric: Metric) -> Family:
    return Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
