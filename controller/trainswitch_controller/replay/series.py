"""Series on a grid of moments: stretches of values, each ended by a staleness marker."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Iterable, Mapping

Labels = tuple[tuple[str, str], ...]
"""Sorted by name, the metric's name under ``__name__`` among them."""


@dataclasses.dataclass(slots=True)
class Stretch:
    """Values at consecutive moments of a grid."""

    start: int
    """Index of the first one."""
    values: array[float] = dataclasses.field(default_factory=lambda: array("d"))

    @property
    def end(self) -> int:
        """Index of the first moment without a value."""
        return self.start + len(self.values)


class Series:
    """One series; values are added in the order of time."""

    __slots__ = ("_next", "labels", "stretches")

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.stretches: list[Stretch] = []
        self._next = -1

    def add(self, index: int, value: float) -> None:
        """Take the value at a moment, which ends the stretch before it if there is a gap between them."""
        if index != self._next:
            self.stretches.append(Stretch(index))
        self.stretches[-1].values.append(value)
        self._next = index + 1

    def hold(self, index: int) -> None:
        """Let the last value stand at all moments before `index`."""
        missing = index - self._next
        if missing > 0 and self.stretches:
            values = self.stretches[-1].values
            values.extend(array("d", [values[-1]]) * missing)
            self._next = index

    def extend(self, start: int, values: array[float]) -> None:
        """Take values at consecutive moments."""
        if start == self._next:
            self.stretches[-1].values.extend(values)
        else:
            self.stretches.append(Stretch(start, values))
        self._next = start + len(values)


class LabelsClash(ValueError):
    """Two series have the same labels at the same moment."""


def relabelled(
    results: Iterable[Series], change: Callable[[dict[str, str]], Mapping[str, str]]
) -> list[Series]:
    """Return series with other labels; those that get the same ones become one, as they take turns.

    Args:
        results: the series; they are used up.
        change: labels as they are → labels as they become.

    Raises:
        LabelsClash: two that get the same labels have a value at the same moment.
    """
    groups: dict[Labels, list[Stretch]] = {}
    for result in results:
        groups.setdefault(sorted_labels(change(dict(result.labels))), []).extend(result.stretches)
    return [_joined(labels, stretches) for labels, stretches in groups.items()]


def _joined(labels: Labels, stretches: list[Stretch]) -> Series:
    series = Series(labels)
    end = -1
    for stretch in sorted(stretches, key=lambda one: one.start):
        if stretch.start < end:
            raise LabelsClash(f"two results have the labels {dict(labels)} at the same moment.")
        series.extend(stretch.start, stretch.values)
        end = stretch.end
    return series


def sorted_labels(labels: Mapping[str, str]) -> Labels:
    """Return labels as `Labels`, without those whose value is empty: to Prometheus they do not exist."""
    return tuple(sorted((name, value) for name, value in labels.items() if value))
