"""When a signal left its band before an alert: a pure function of its series."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping

from trainswitch_controller.onset.evidence import Evidence
from trainswitch_controller.onset.signals import Signal, SignalFile
from trainswitch_controller.onset.usual import edges_of, excess_of, usual_before
from trainswitch_controller.prometheus_api import Line

_MILLISECONDS = 0.01
"""Prometheus rounds times to one, so equal ones may differ by less than this."""

_GAP_SECONDS = 30.0
"""Without samples, and a signal that was outside before and after it was so all the time."""


@dataclasses.dataclass(frozen=True)
class Departure:
    """One series of a signal that was outside its band when an alert began to fire."""

    signal: str
    place: int
    """Of its signal in the order of causality; 0 is the first cause."""
    labels: Mapping[str, str]
    at: float
    """Unix seconds of the first moment outside."""
    value: float
    """Furthest value outside."""
    usual: float | None
    """The median before, where the band is one around it."""
    excess: float
    """How far outside: the furthest value over the band's edge, or the edge over the value; above 1."""
    step: int | None
    """Highest step of this course of the run that was seen within the band."""
    last_step: int | None
    """Of the run at `at`: it left its band in one of the steps after `step` up to this one."""


def find_departures(signals: SignalFile, evidence: Evidence, at: float) -> list[Departure]:
    """Return what was outside its band at `at` (Unix seconds) and once within it, in the order of time."""
    found = []
    for place, (name, signal) in enumerate(signals.signals.items()):
        for line in evidence.lines.get(name, ()):
            departure = _departure(name, place, signal, evidence, line, at)
            if departure is not None:
                found.append(departure)
    return sorted(found, key=lambda one: (one.at, one.place, -one.excess))


def _departure(
    name: str, place: int, signal: Signal, evidence: Evidence, line: Line, at: float
) -> Departure | None:
    count = bisect.bisect_right(line.times, at + _MILLISECONDS)
    # A NaN spreads to everything in its step and points at nobody: other signals count them.
    kept = [index for index in range(count) if math.isfinite(line.values[index])]
    times, values = [line.times[index] for index in kept], [line.values[index] for index in kept]
    edges = edges_of(signal, times, values)
    outside = [index for index, edge in enumerate(edges) if excess_of(signal, values[index], edge) > 1.0]
    if not outside or at - times[outside[-1]] > signal.reach + evidence.resolution:
        return None
    first = outside[-1]
    for index in reversed(outside):
        unseen = first - index <= 1  # no sample in between says that it was back
        bridge = max(signal.bridge, _GAP_SECONDS) if unseen else signal.bridge
        if times[first] - times[index] > bridge + evidence.resolution:
            break
        first = index
    if signal.steady:
        first = _turn(signal, values, first)
    began = times[first]
    seen_since = max(evidence.start, evidence.steps.times[0]) if evidence.steps else evidence.start
    if began - seen_since <= signal.bridge + evidence.resolution:
        return None  # outside all the time, as far as one can see
    worst = max(
        (index for index in outside if index >= first),
        key=lambda index: excess_of(signal, values[index], edges[index]),
    )
    step, last_step = _steps(evidence, began, at)
    return Departure(
        signal=name,
        place=place,
        labels=line.labels,
        at=began,
        value=values[worst],
        usual=usual_before(signal, times, values, first) if signal.relative else None,
        excess=excess_of(signal, values[worst], edges[worst]),
        step=step,
        last_step=last_step,
    )


def _turn(signal: Signal, values: list[float], first: int) -> int:
    """Return the first moment of the rise, or fall, that led to the moment `first`."""
    while first > 1:
        before, now = values[first - 2], values[first - 1]
        if before == now or (before < now) is not signal.upper:
            break
        first -= 1
    return first


def _steps(evidence: Evidence, began: float, at: float) -> tuple[int | None, int | None]:
    """Return the highest step that was surely seen before `began`, and the run's step at `began`.

    Where the run has gone back to an earlier step since, what follows that step is from after `began`, too.
    """
    line = evidence.steps
    if line is None:
        return None, None
    before = bisect.bisect_left(line.times, began - evidence.resolution / 2) - 1
    if before < 0:
        return None, None
    until = bisect.bisect_right(line.times, at + _MILLISECONDS)
    since = line.values[before : max(until, before + 1)]
    now = line.values[max(before, bisect.bisect_right(line.times, began + evidence.resolution / 2) - 1)]
    if not all(math.isfinite(one) for one in (*since, now)):
        return None, None
    return max(0, int(min(since))), int(now)
