"""The Prometheus registry that the catalogue describes, with every child looked up once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from trainswitch.metrics.catalogue import CATALOGUE, Metric

Child = TypeVar("Child", Gauge, Counter, Histogram)


class MetricRegistry:
    """All metrics of the catalogue for one run and rank."""

    def __init__(self, common: Mapping[str, str], catalogue: Iterable[Metric] = CATALOGUE) -> None:
        """Create all metrics, and the series that are known already.

        Args:
            common: values of the labels that every series carries.
            catalogue: the metrics.
        """
        self.registry = CollectorRegistry()
        self._common = tuple(common.values())
        self._families: dict[str, MetricWrapperBase] = {}
        self._children: dict[tuple[str, ...], MetricWrapperBase] = {}
        for metric in catalogue:
            self._families[metric.name] = self._create(metric)
            known = [values for _, values in metric.labels]
            if metric.kind != "gauge" and all(known):  # increase() cannot see a series' first increment
                for values in itertools.product(*known):
                    self._child(metric.name, *values)

    def _create(self, metric: Metric) -> MetricWrapperBase:
        if metric.kind == "histogram":
            return Histogram(
                metric.name, metric.help, metric.label_names, buckets=metric.buckets, registry=self.registry
            )
        family = Counter if metric.kind == "counter" else Gauge
        return family(metric.name, metric.help, metric.label_names, registry=self.registry)

    def _child(self, name: str, *values: str) -> MetricWrapperBase:
        key = (name, *values)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._families[name].labels(*self._common, *values)
        return child

    def gauge(self, name: str, *values: str) -> Gauge:
        """Return the gauge `name` with the values of its own labels."""
        return cast("Gauge", self._child(name, *values))

    def counter(self, name: str, *values: str) -> Counter:
        """Return the counter `name` with the values of its own labels."""
        return cast("Counter", self._child(name, *values))

    def histogram(self, name: str, *values: str) -> Histogram:
        """Return the histogram `name` with the values of its own labels."""
        return cast("Histogram", self._child(name, *values))

    def render(self) -> bytes:
        """Return all samples in Prometheus's text format."""
        return generate_latest(cast("CollectorRegistry", _WithoutCreated(self.registry)))


class _WithoutCreated(Collector):
    """A registry's samples without ``_created``, which would double the families.

    The library's own switch is global, and so would change what the trainer's process exports elsewhere.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Family]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
