"""Which values could be limits: levels of each signal above what is usual on healthy rows."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from trainswitch.config import MonitorConfig
from trainswitch_controller.replay.model import ReplayedRun
from trainswitch_controller.tune.labels import Trouble
from trainswitch_controller.tune.phases import phases_of_rows

Signal = Literal["loss", "grad_norm", "loss_ratio"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)

RATIO_TRACES = ("train_loss_window{max}", "train_loss_window{median}", "train_baseline_ready")
"""Series that the largest loss over the median comes from."""

SPREADS = (0.0, 0.5, 1.0, 3.0)
"""Levels above the highest healthy value, in distances from the median to it."""
_MARGIN = 0.5
"""From this level on there is a margin for healthy runs that are not among those given."""
FEWEST_VALUES = 20
"""Healthy values that a limit needs to be worked out from."""
_TIGHT_QUANTILE = 0.999
"""The tightest level: one healthy value in a thousand lies above it."""
_DIGITS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One signal in one phase, with the values that could be its limit."""

    signal: Signal
    phase: str | None
    """None where there are no phases."""
    levels: tuple[float, ...]
    """From tight to loose."""
    margin: int
    """Index of the tightest level with a margin."""
    highest: float
    """Highest healthy value."""
    highest_run: str
    highest_row: int
    median: float
    """Of the healthy values."""


def places(
    runs: Sequence[ReplayedRun],
    config: MonitorConfig,
    troubles: Mapping[str, Sequence[Trouble]],
    signals: Sequence[Signal],
) -> list[Place]:
    """Return the places that `runs` say enough about.

    Args:
        runs: replayed with `RATIO_TRACES`.
        config: with the phases.
        troubles: of each run that has some; their rows are left out.
        signals: those to look at.
    """
    values: dict[tuple[Signal, str | None], list[tuple[float, str, int]]] = {}
    for run in runs:
        phases = phases_of_rows(run.run, config)
        bad = troubles.get(run.run.id, ())
        for signal in signals:
            for row, value in _values(signal, run, config, bad):
                values.setdefault((signal, phases[row]), []).append((value, run.run.id, row))
    names: list[str | None] = [phase.name for phase in config.phases] or [None]
    return [
        _place(signal, phase, values[signal, phase])
        for signal in signals
        for phase in names
        if len(values.get((signal, phase), ())) >= FEWEST_VALUES
    ]


def memory_of(signal: Signal, config: MonitorConfig) -> int:
    """Return how many rows a signal looks back on: so long after a trouble it may still show it."""
    return config.statistics.trend_window_steps if signal == "loss_ratio" else 0


def _is_ill(row: int, troubles: Sequence[Trouble], memory: int = 0) -> bool:
    return any(trouble.is_met_by(row, row, memory) for trouble in troubles)


def _place(signal: Signal, phase: str | None, found: list[tuple[float, str, int]]) -> Place:
    highest, run, row = max(found)
    ordered = sorted(value for value, _, _ in found)
    median = statistics.median(ordered)
    spread = (highest - median) or abs(highest) or 1.0
    tight = ordered[math.ceil(_TIGHT_QUANTILE * len(ordered)) - 1]
    levels = (tight, *(highest + factor * spread for factor in SPREADS))
    rounded = tuple(sorted({_rounded_up(level) for level in levels}))
    margin = rounded.index(_rounded_up(highest + _MARGIN * spread))
    return Place(signal, phase, rounded, margin, highest, run, row, median)


def _rounded_up(value: float) -> float:
    """Return the next value with three digits: never below, so that what was measured is not above it."""
    if value == 0.0:
        return 0.0
    digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    scaled = math.ceil(round(value * 10.0**digits, 6))
    return float(f"{scaled * 10.0**-digits:.{_DIGITS + 1}g}")


def _values(
    signal: Signal, run: ReplayedRun, config: MonitorConfig, troubles: Sequence[Trouble]
) -> Iterator[tuple[int, float]]:
    """Yield (row, value) of what is finite and healthy."""
    if signal == "loss_ratio":
        yield from _ratios(run, config, troubles)
        return
    for number, row in enumerate(run.run.rows):
        value = row.loss if signal == "loss" else row.grad_norm
        if value is not None and math.isfinite(value) and not _is_ill(number, troubles):
            yield number, value


def _ratios(
    run: ReplayedRun, config: MonitorConfig, troubles: Sequence[Trouble]
) -> Iterator[tuple[int, float]]:
    """Yield the largest loss of the trend window over its median, where the warm-up is over."""
    highest, median, ready = (run.traces.get(name) for name in RATIO_TRACES)
    if highest is None or median is None or ready is None:
        return
    medians = dict(zip(median.rows, median.values, strict=True))
    ends_of_warmup = [row for row, value in zip(ready.rows, ready.values, strict=True) if value == 1.0]
    for row, value in zip(highest.rows, highest.values, strict=True):
        below = medians.get(row, math.nan)
        if (
            ends_of_warmup
            and row >= ends_of_warmup[0]
            and below > 0.0
            and math.isfinite(value)
            and not _is_ill(row, troubles, memory_of("loss_ratio", config))
        ):
            yield row, value / below
