"""The values behind the samples: gauges, counters and histograms as plain numbers.

The client library's own are made for many threads and pay for it: a lock for each change, a loop over the
buckets for each observation. Here one thread at a time works under the aggregator's lock, many times for each
step, and shares Python's lock with the training thread; so the values are plain, and the library gets them
when somebody looks (it calls that a custom collector).
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

LARGEST = sys.float_info.max


class Gauge:
    """One value that goes up and down."""

    __slots__ = ("_labels", "_name", "series", "text", "value")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self._name = name
        self._labels = dict(labels)
        self.value = 0.0
        self.text: str | None = None
        """The exposition's: what it wrote of the samples; None since they changed."""
        self.series: list[str] | None = None
        """The exposition's: what precedes each number; None until it was written once."""

    def set(self, value: float) -> None:
        """Take `value`."""
        value = float(value)
        if value != self.value:
            self.value = value
            self.text = None

    def samples(self) -> Iterator[Sample]:
        """Yield the one sample."""
        yield Sample(self._name, self._labels, self.value)

    def numbers(self) -> Sequence[float]:
        """Return the value of the one sample."""
        return (self.value,)


class Counter:
    """One value that only goes up; `amount` must be a finite number that is not negative."""

    __slots__ = ("_labels", "_name", "series", "text", "value")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self._name = name
        self._labels = dict(labels)
        self.value = 0.0
        self.text: str | None = None
        self.series: list[str] | None = None

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`; a sum beyond the largest number stays there, since rate() of infinity is NaN."""
        if amount:
            self.value = min(self.value + amount, LARGEST)
            self.text = None

    def samples(self) -> Iterator[Sample]:
        """Yield the one sample."""
        yield Sample(self._name, self._labels, self.value)

    def numbers(self) -> Sequence[float]:
        """Return the value of the one sample."""
        return (self.value,)


class Histogram:
    """Counts of observations by upper bound, and their sum; without a sum where a bound is negative."""

    __slots__ = ("_bounds", "_counts", "_lines", "_sum", "_sum_line", "series", "text")

    def __init__(self, name: str, labels: Mapping[str, str], bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.text: str | None = None
        self.series: list[str] | None = None
        upper = [*(floatToGoString(bound) for bound in bounds), "+Inf"]  # type: ignore[no-untyped-call]
        self._lines = [(f"{name}_bucket", {**labels, "le": bound}) for bound in upper]
        self._lines.append((f"{name}_count", dict(labels)))
        self._sum_line = (f"{name}_sum", dict(labels)) if bounds[0] >= 0.0 else None

    def observe(self, value: float) -> None:
        """Take one finite value; the sum never goes down, so what is below zero adds nothing to it."""
        self.text = None
        self._counts[bisect_left(self._bounds, value)] += 1
        if value > 0.0:
            self._sum = min(self._sum + value, LARGEST)

    def amount(self, position: int) -> float:
        """Return the value of the sample that `samples` yields at a position, without making the others."""
        if position <= len(self._counts):  # a bucket, or the count
            return float(sum(self._counts[: position + 1]))
        return self._sum

    def samples(self) -> Iterator[Sample]:
        """Yield cumulative buckets, count, and sum."""
        total = 0
        for (name, labels), count in zip(self._lines, self._counts, strict=False):
            total += count
            yield Sample(name, labels, float(total))
        name, labels = self._lines[-1]
        yield Sample(name, labels, float(total))
        if self._sum_line is not None:
            yield Sample(*self._sum_line, self._sum)

    def numbers(self) -> Sequence[float]:
        """Return the values of the samples, in their order; whole numbers as such."""
        cumulative = list(accumulate(self._counts))
        cumulative.append(cumulative[-1])
        return [*cumulative, self._sum] if self._sum_line is not None else cumulative
