"""Which levels become limits: within the budget those that meet most, cost least and leave a margin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainswitch_controller.tune.judging import Measure, Severity, Slot

Levels = Mapping[Slot, Sequence[Measure]]
"""Slot → what each level did, from tight to loose."""


def choose(levels: Levels, allowed: Mapping[Severity, int], margin: Mapping[Slot, int]) -> dict[Slot, int]:
    """Return slot → the index of its level; slots for which no level fits into the budget are left out.

    A level without a margin above what is healthy is chosen only if it meets more or costs less than those
    with one: some runs cannot tell how high the next healthy one will go. A critical limit warns, too, of a
    single step above it: so it is never tighter than the warning's.

    Args:
        levels: what was measured.
        allowed: severity → how many false alarms all limits of it may cause together.
        margin: slot → the index of its tightest level with a margin.
    """
    warnings = _within("warning", levels, allowed["warning"], margin, {})
    critical = _within("critical", levels, allowed["critical"], margin, warnings)
    return {**critical, **warnings}


def looser(choice: Mapping[Slot, int], levels: Levels, slot: Slot) -> dict[Slot, int]:
    """Return `choice` with the next looser level of `slot`, or without it where there is none.

    A critical limit is never tighter than the warning's, so it may have to go along.
    """
    changed = dict(choice)
    critical = Slot(slot.signal, "critical", slot.phase)
    if changed[slot] + 1 < len(levels[slot]):
        changed[slot] += 1
        if critical in changed:
            changed[critical] = max(changed[critical], changed[slot])
    else:
        del changed[slot]
        if slot.severity == "warning":  # a critical limit would go on warning
            changed.pop(critical, None)
    return changed


def _within(
    severity: Severity,
    levels: Levels,
    allowed: int,
    margin: Mapping[Slot, int],
    tightest: Mapping[Slot, int],
) -> dict[Slot, int]:
    chosen: dict[Slot, int] = {}
    for slot, measures in levels.items():
        if slot.severity != severity:
            continue
        first = 0
        if severity == "critical":
            warning = Slot(slot.signal, "warning", slot.phase)
            if warning not in tightest:
                continue
            first = tightest[warning]
        best = _best(measures, first, allowed, margin[slot])
        if best is not None:
            chosen[slot] = best
    while chosen and sum(levels[slot][index].false_alarms for slot, index in chosen.items()) > allowed:
        dearest = max(chosen, key=lambda slot: levels[slot][chosen[slot]].false_alarms)
        cost = levels[dearest][chosen[dearest]].false_alarms
        best = _best(levels[dearest], chosen[dearest] + 1, cost - 1, margin[dearest])
        if best is None:
            del chosen[dearest]
        else:
            chosen[dearest] = best
    return chosen


def _best(measures: Sequence[Measure], first: int, allowed: int, margin: int) -> int | None:
    fitting = [index for index in range(first, len(measures)) if measures[index].false_alarms <= allowed]
    return min(
        fitting,
        key=lambda index: (
            -len(measures[index].caught),
            measures[index].false_alarms,
            index < margin,
            index,
        ),
        default=None,
    )
