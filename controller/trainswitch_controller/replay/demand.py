"""Which of the exporter's series the rules read, and when: the others need not be worked out and stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainswitch.metrics.catalogue import CATALOGUE
from trainswitch_controller.promql import Selector
from trainswitch_controller.replay.order import may_select
from trainswitch_controller.replay.rule_files import Rule

_SUFFIXES = ("_bucket", "_count", "_sum")
_Reader = tuple[Selector, float | None]
"""A selector, and the interval of its rule where it reads only the moments of the evaluations."""


class Demand:
    """What rules ask of the exporter. Can be pickled."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        """Collect what `rules` select."""
        self._readers: frozenset[_Reader] = frozenset(
            (selector, None if rule.looks_back or selector.range or selector.offset else rule.interval)
            for rule in rules
            for selector in rule.reads
        )
        self._by_name: dict[str, tuple[_Reader, ...]] = {}
        self.intervals = frozenset(interval for _, interval in self._readers if interval is not None)
        """Of the groups that read at the moments of their evaluations."""
        self._needed: dict[frozenset[float], frozenset[str]] = {}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the catalogue's metrics that are needed, in its order."""
        return tuple(metric.name for metric in CATALOGUE if self._readers_of(metric.name, metric.kind))

    def wants(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a series is read by a rule."""
        return any(may_select(selector, labels, complete=True) for selector, _ in self._reading(name))

    def needed_for(self, due: frozenset[float]) -> frozenset[str]:
        """Return the metrics whose values at a scrape are read.

        Where a metric is only read at the very moments at which rules are evaluated, these are the scrapes
        right before an evaluation. What the others would bring is not looked at by anybody.

        Args:
            due: of `intervals`, those of the groups that are evaluated between the scrape and the next one.
        """
        found = self._needed.get(due)
        if found is None:
            found = self._needed[due] = frozenset(
                metric.name
                for metric in CATALOGUE
                if any(
                    interval is None or interval in due
                    for _, interval in self._readers_of(metric.name, metric.kind)
                )
            )
        return found

    def _readers_of(self, metric: str, kind: str) -> list[_Reader]:
        names = [metric + suffix for suffix in _SUFFIXES] if kind == "histogram" else [metric]
        return [reader for name in names for reader in self._reading(name)]

    def _reading(self, name: str) -> tuple[_Reader, ...]:
        found = self._by_name.get(name)
        if found is None:
            found = tuple(reader for reader in self._readers if reader[0].names_among({name}))
            self._by_name[name] = found
        return found
