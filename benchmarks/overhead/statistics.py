"""The median of a few measurements, and how far it can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Median(NamedTuple):
    """A median with its interval."""

    value: float
    low: float
    high: float
    sure: bool = True
    """Whether the interval holds the true median with a probability of at least `CONFIDENCE`."""

    def as_json(self) -> dict[str, float]:
        """Return the three numbers by name."""
        return {"median": self.value, "low": self.low, "high": self.high}


def median(values: Sequence[float]) -> Median:
    """Return the median and its interval from order statistics, which assumes nothing of the distribution.

    The k-th smallest and k-th largest of n values hold the median between them with probability
    1 - 2·P(Binomial(n, 1/2) < k); k is the largest that keeps it at `CONFIDENCE`. (H. A. David and
    H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1.) Fewer than six values never reach it: then
    the interval is all of them, and not sure.
    """
    ordered = sorted(values)
    n = len(ordered)
    outside, k = 0.0, 0
    while 2 * (outside + math.comb(n, k) / 2**n) <= 1.0 - CONFIDENCE:
        outside += math.comb(n, k) / 2**n
        k += 1
    sure, k = k > 0, max(k, 1)
    return Median(statistics.median(ordered), ordered[k - 1], ordered[n - k], sure)
