"""The states of one alerting rule's alerts, as Prometheus's rule manager keeps them.

Its rules, by their results at each evaluation (rules/alerting.go): an alert is pending from its first result
on, and fires once it has been there for ``for``. Without a result, a pending alert is gone at once; one that
fires goes on firing until ``keep_firing_for`` has passed since its result was first missed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from trainswitch_controller.replay.rule_files import Rule
from trainswitch_controller.replay.series import Series, sorted_labels
from trainswitch_controller.replay.timeline import Grid


@dataclasses.dataclass(slots=True)
class FiringSpan:
    """One alert from when it began to fire until it ceased, on the grid of its rule's evaluations."""

    labels: Mapping[str, str]
    start: int
    end: int
    """Index of the last evaluation at which it fired."""
    value: float
    """Of the expression when it began."""


def play_alerts(
    rule: Rule, results: Iterable[Series], grid: Grid, count: int
) -> tuple[list[FiringSpan], list[Series]]:
    """Return when the alerts of a rule fired, and the series that the rule manager writes of them.

    Args:
        rule: the alerting rule.
        results: of its expression, with the labels that the alerts have.
        grid: of its evaluations.
        count: how many evaluations there are.
    """
    spans: list[FiringSpan] = []
    written: list[Series] = []
    for result in results:
        alert = _Alert(rule, dict(result.labels), grid)
        for stretch in result.stretches:
            alert.miss_until(stretch.start)
            for index, value in enumerate(stretch.values, stretch.start):
                alert.see(index, value)
        alert.miss_until(count)
        spans += alert.spans
        written += alert.written
    return spans, written


class _Alert:
    """One alert through all evaluations."""

    def __init__(self, rule: Rule, labels: dict[str, str], grid: Grid) -> None:
        self._hold_ms, self._keep_ms = rule.hold * 1000, rule.keep_firing * 1000
        self._grid = grid
        self._labels = labels
        self._active_at: int | None = None
        self._missed_at: int | None = None
        self._firing = False
        self._next = 0
        named = {"__name__": "ALERTS", **labels}
        self._pending_series = Series(sorted_labels({**named, "alertstate": "pending"}))
        self._firing_series = Series(sorted_labels({**named, "alertstate": "firing"}))
        self._since_series = Series(sorted_labels({**labels, "__name__": "ALERTS_FOR_STATE"}))
        self.spans: list[FiringSpan] = []

    @property
    def written(self) -> list[Series]:
        return [self._pending_series, self._firing_series, self._since_series]

    def see(self, index: int, value: float) -> None:
        """Take the result of an evaluation."""
        self._next = index + 1
        self._missed_at = None
        if self._active_at is None:
            self._active_at = index
        if not self._firing and (index - self._active_at) * self._grid.step >= self._hold_ms:
            self._firing = True
            self.spans.append(FiringSpan(self._labels, index, index, value))
        self._write(index)

    def miss_until(self, end: int) -> None:
        """Take it that there is no result from the evaluation after the last one until before `end`."""
        for index in range(self._next, end):
            if not self._firing or not self._kept(index):
                self._active_at = self._missed_at = None
                self._firing = False
                break
            self._write(index)
        self._next = end

    def _kept(self, index: int) -> bool:
        if self._missed_at is None:
            self._missed_at = index
        return (index - self._missed_at) * self._grid.step < self._keep_ms

    def _write(self, index: int) -> None:
        assert self._active_at is not None
        (self._firing_series if self._firing else self._pending_series).add(index, 1.0)
        self._since_series.add(index, float(self._grid.at(self._active_at) // 1000))
        if self._firing:
            self.spans[-1].end = index
