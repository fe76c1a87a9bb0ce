"""Where the edge of a signal's band lies at each moment: at a number, or around what is usual."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence

from trainswitch_controller.onset.signals import Signal

_FEWEST = 10
"""Points that say what is usual, at least."""
_SIGMAS = 4.0
"""Robust standard deviations of its own, in the log domain, within which a series is as usual in any case."""
_NORMAL = 1.349
"""Of a normal distribution: distance of its quartiles in standard deviations."""
_WIDEST = 50.0
"""Of a band, as a logarithm: nothing real lies outside, and numbers do not overflow."""


def edges_of(signal: Signal, times: Sequence[float], values: Sequence[float]) -> list[float | None]:
    """Return the edge of the band at each of a series' points; None where nobody knows what is usual there.

    What is usual within a time before each point is known once half of that time has been seen. A series that
    has left its band makes it no wider before it has come back, or been outside for as long as is looked at.

    Args:
        signal: whose band.
        times: of the points, in their order.
        values: finite.
    """
    if not signal.relative:
        return [signal.limit] * len(values)
    if signal.usual_of is None:
        return [_edge(signal, values[: len(values) // 2])] * len(values)
    edges: list[float | None] = []
    window: list[float] = []  # in the order of size
    oldest = 0
    left_at: int | None = None  # where it left its band; what came since is not in the window
    for index, value in enumerate(values):
        while times[oldest] < times[index] - signal.usual_of:
            if left_at is None or oldest < left_at:
                window.pop(bisect.bisect_left(window, values[oldest]))
            oldest += 1
        seen = times[index] - times[oldest] >= signal.usual_of / 2
        edge = _edge(signal, window, beyond=value) if seen else None
        edges.append(edge)
        if excess_of(signal, value, edge) > 1.0:
            left_at = index if left_at is None else left_at
            continue
        if left_at is not None:
            for one in values[max(left_at, oldest) : index]:
                bisect.insort(window, one)
            left_at = None
        bisect.insort(window, value)
    return edges


def excess_of(signal: Signal, value: float, edge: float | None) -> float:
    """Return how far outside its band a value is, as a ratio above 1; at most 1 is within."""
    if edge is None:
        return 0.0
    over, under = (value, edge) if signal.upper else (edge, value)
    if under > 0.0:
        return over / under
    return math.inf if over > under else 0.0


def usual_before(signal: Signal, times: Sequence[float], values: Sequence[float], index: int) -> float:
    """Return the median that the edge at the point `index` was made from; there is one."""
    if signal.usual_of is None:
        return statistics.median(values[: len(values) // 2])
    first = bisect.bisect_left(times, times[index] - signal.usual_of)
    return statistics.median(values[first:index])


def _edge(signal: Signal, usual: Sequence[float], beyond: float | None = None) -> float | None:
    """Return the edge around values that are usual; `beyond` is a value that need not lie outside."""
    if len(usual) < _FEWEST:
        return None
    middle = statistics.median(usual)
    if middle <= 0.0:
        return None
    edge = signal.limit * middle
    if beyond is not None and (beyond <= edge if signal.upper else beyond >= edge):
        return edge  # within, whatever the spread: it need not be worked out
    logs = [math.log(value) for value in usual if value > 0.0]
    lower, _, upper = statistics.quantiles(logs, n=4)
    spread = math.exp(min(_SIGMAS * (upper - lower) / _NORMAL, _WIDEST))
    return middle * (max(signal.limit, spread) if signal.upper else min(signal.limit, 1.0 / spread))
