"""The text of a scrape is the client library's own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from trainswitch.metrics.catalogue import CATALOGUE, Metric
from trainswitch.metrics.registry import MetricRegistry, Reading


class WithoutCreated(Collector):
    """A registry without the series that are left out."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def collect(self) -> Iterable[Family]:
        """Give the other series."""
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def reference(registry: CollectorRegistry) -> bytes:
    """Return what the library writes."""
    return generate_latest(cast("CollectorRegistry", WithoutCreated(registry)))


def test_a_whole_registry_is_rendered_byte_for_byte() -> None:
    """Every family of the catalogue, with a series that came later, at the first scrape and at the next."""
    metrics = MetricRegistry({"run": "run-1", "rank": "0"})
    for value in (1.5, math.nan):
        metrics.gauge("train_loss").set(value)
        metrics.counter("train_steps_total").inc()
        metrics.histogram("train_step_seconds").observe(0.2)
        metrics.gauge("train_eval", f"metric {value}").set(1e21)
        assert metrics.render() == reference(metrics.registry)
    unchanged = metrics.render()
    assert unchanged == reference(metrics.registry)
    metrics.counter("train_steps_total").inc(0.0)
    metrics.gauge("train_loss").set(math.nan)
    assert metrics.render() == unchanged
    metrics.histogram("train_step_seconds").observe(1e9)
    assert metrics.render() == reference(metrics.registry) != unchanged
    assert {metric.name for metric in CATALOGUE if not metric.collected} <= set(
        metrics.render().decode().replace("\n", " ").split()
    )


ODD = (
    Metric(name="g", kind="gauge", help="A \\ help\ntext.", labels=(("b", ()), ("a", ()))),
    Metric(name="c_total", kind="counter", help="Help.", labels=(("a", ()),)),
    Metric(name="h", kind="histogram", help="Help.", labels=(("a", ()),), buckets=(-1.0, 1.0)),
    Metric(name="seen", kind="gauge", help="A \\ help\ntext.", labels=(("a", ()),), collected=True),
    Metric(name="read_total", kind="counter", help="Help.", labels=(("a", ()),), collected=True),
)


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), max_size=8), st.floats()), min_size=1, max_size=4
    )
)
def test_any_label_value_and_any_number(series: list[tuple[str, float]]) -> None:
    """Quotes, line breaks and backslashes in labels, infinities and NaN are written as the library does."""
    metrics = MetricRegistry({"run": "a \\ run", "rank": "0"}, ODD)
    read: list[Reading] = []
    metrics.add_source(lambda: read)
    for label, value in series:
        metrics.gauge("g", label, "x").set(value)
        metrics.counter("c_total", label).inc()
        metrics.histogram("h", label).observe(value if math.isfinite(value) else 0.0)
        read.extend((Reading("seen", (label,), value), Reading("read_total", (label,), 1.0)))
        assert metrics.render() == reference(metrics.registry)
