"""One figure against its bar."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.overhead.statistics import Median


class Verdict(NamedTuple):
    """One figure against its bar."""

    name: str
    measured: Median
    bar: float

    @property
    def outcome(self) -> str:
        """Passed, missed, undecided because the interval holds the bar, or not judged for want of values."""
        if not self.measured.sure:
            return "not judged"
        if self.measured.high <= self.bar:
            return "passed"
        return "missed" if self.measured.low > self.bar else "undecided"
