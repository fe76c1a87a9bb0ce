"""Which series exist: what the exporter and the controller export, and which labels they have."""

from __future__ import annotations

import functools
import time
from typing import Final

from trainswitch.metrics.catalogue import CATALOGUE, Metric

PROMETHEUS_OWN: Final = frozenset({"up", "ALERTS", "ALERTS_FOR_STATE"})
FOREIGN_PREFIXES: Final = ("prometheus_", "alertmanager_", "scrape_", "go_", "process_", "promhttp_", "net_")
"""Metrics of Prometheus and Alertmanager themselves; which they are is for them to say."""

_SUFFIXES = {"gauge": ("",), "counter": ("",), "histogram": ("_bucket", "_count", "_sum")}


@functools.cache
def exported() -> dict[str, Metric]:
    """Return series name → metric, for every series of the trainer's endpoint."""
    return {
        f"{metric.name}{suffix}": metric
        for metric in CATALOGUE
        for suffix in _SUFFIXES[metric.kind]
        if not (suffix == "_sum" and metric.buckets[0] < 0.0)
    }


@functools.cache
def of_the_controller() -> frozenset[str]:
    """Return the names of the controller's own series."""
    from trainswitch_controller.metrics import Metrics  # brings the journal's database

    names = set()
    for family in Metrics((), time.time).registry.collect():
        names |= {sample.name for sample in family.samples}
        names |= {f"{family.name}_total"} if family.type == "counter" else {family.name}
        if family.type == "histogram":
            names |= {f"{family.name}{suffix}" for suffix in _SUFFIXES["histogram"]}
    return frozenset(names)


def is_foreign(name: str) -> bool:
    """Return whether a series is Prometheus' or Alertmanager's own."""
    return name in PROMETHEUS_OWN or name.startswith(FOREIGN_PREFIXES)
