"""The value that a clause looks at, and how what lasts is counted: as streaks, by a clock, or by time."""

from __future__ import annotations

import dataclasses
from typing import Literal

from trainswitch.statistics.streaks import STREAK_EVALUATIONS, STREAK_STEPS
from trainswitch_controller.rulebook.condition import Clause, Operator, Persistence
from trainswitch_controller.rulebook.quantity import Quantity
from trainswitch_controller.rulebook.sources import Source, gauge

Clock = Literal["train_steps_total", "train_epoch"]
"""What goes on while something lasts."""

_CLOCKS: dict[str, Clock] = {"steps": "train_steps_total", "epochs": "train_epoch"}


class MeaninglessClause(Exception):
    """A clause is well-formed, and cannot be judged of this metric; the message says what can."""


@dataclasses.dataclass(frozen=True)
class Watched:
    """The value that is compared, and how long that has to last besides."""

    source: Source
    aggregation: str
    labels: tuple[str, ...]
    """Labels of the result: a series per run, or per rank."""
    clock: tuple[Clock, float] | None = None
    """What has to go on meanwhile, and by how much."""
    waits: float = 0.0
    """Seconds that have to pass."""

    @property
    def expr(self) -> str:
        """The value as PromQL."""
        return aggregated(self.aggregation, self.source, self.labels)


def aggregated(aggregation: str, source: Source, labels: tuple[str, ...]) -> str:
    """Return the expression of a source, one series for each value of the labels."""
    if aggregation == "median":
        return f"quantile by ({', '.join(labels)}) (0.5, {source.expr})"
    return f"{aggregation} by ({', '.join(labels)}) ({source.expr})"


def watch(clause: Clause, quantity: Quantity, operator: Operator) -> Watched:
    """Return what a clause looks at, and how what lasts is counted.

    Raises:
        MeaninglessClause: the metric has no such statistic, or nothing counts what shall last.
    """
    upper = operator in (">", ">=")
    own = clause.statistic in (None, "value", "max" if upper else "min")
    if quantity.kind == "step" and own:
        if operator == "==":
            raise MeaninglessClause(
                f"{quantity.name} is a new value each step, which hardly ever equals a number: "
                "write '<=' or '>='."
            )
        return _steps(clause.persistence, quantity, upper=upper)
    if quantity.kind == "evaluation" and own:
        return _evaluations(clause.persistence, quantity, upper=upper)
    source, aggregation = _statistic(clause, quantity, "max" if upper or operator == "==" else "min")
    clock, waits = _lasting(clause.persistence, quantity)
    # What a clock counts is of the run: looking a day back on every rank would be dear.
    labels = ("run", "rank") if quantity.kind == "step" and clock is None else ("run",)
    return Watched(source, aggregation, labels, clock, waits)


def _statistic(clause: Clause, quantity: Quantity, worst: str) -> tuple[Source, str]:
    statistic = clause.statistic or "value"
    if statistic in quantity.statistics:
        return quantity.statistics[statistic], worst
    if quantity.kind == "sampled" and not quantity.statistics:
        across = {"value": worst, "max": "max", "min": "min", "mean": "avg", "median": "median"}
        if statistic in across:
            return quantity.value, across[statistic]
    if statistic in ("value", "max" if worst == "max" else "min"):
        return quantity.value, worst
    known = ", ".join(sorted({"value", *quantity.statistics}))
    raise MeaninglessClause(f"there is no {statistic} of {quantity.name}: use one of {known}.")


def _streak(quantity: Quantity, *, upper: bool, **length: str) -> Source:
    assert quantity.streak is not None
    labels = {**dict(quantity.streak_labels), "side": "upper" if upper else "lower", **length}
    return gauge(quantity.streak, free=(), **labels)


def _steps(persistence: Persistence | None, quantity: Quantity, *, upper: bool) -> Watched:
    """Return the value of so many steps in a row, each of them counted by the exporter."""
    aggregation, count = ("max" if upper else "min"), 1
    if persistence is not None and persistence.unit in ("times", "steps"):
        count = int(persistence.count)
        if count < STREAK_STEPS[-1] and count not in STREAK_STEPS:
            raise MeaninglessClause(_not_counted(count, STREAK_STEPS, "steps"))
    if (persistence is None or persistence.unit in ("times", "steps")) and count <= STREAK_STEPS[-1]:
        return Watched(_streak(quantity, upper=upper, steps=str(count)), aggregation, ("run", "rank"))
    # Longer: every step of the last half minute, for as long as it takes.
    clock, waits = _lasting(persistence, quantity)
    every = _streak(quantity, upper=not upper, steps="1")
    finite = "< Inf" if upper else "> -Inf"  # infinite where all of them were NaN
    labels = ("run", "rank") if clock is None else ("run",)
    return Watched(
        dataclasses.replace(every, expr=f"{every.expr} {finite}"), aggregation, labels, clock, waits
    )


def _evaluations(persistence: Persistence | None, quantity: Quantity, *, upper: bool) -> Watched:
    aggregation = "max" if upper else "min"
    if persistence is None or persistence.seconds is not None:
        waits = 0.0 if persistence is None else (persistence.seconds or 0.0)
        return Watched(quantity.value, aggregation, ("run",), waits=waits)
    if persistence.unit == "steps":
        raise MeaninglessClause(
            f"{quantity.name} is a value of each evaluation, not of each step: count evaluations or epochs."
        )
    count = int(persistence.count)
    if count == 1:
        return Watched(quantity.value, aggregation, ("run",))
    if count not in STREAK_EVALUATIONS:
        raise MeaninglessClause(_not_counted(count, (1, *STREAK_EVALUATIONS), "evaluations and epochs"))
    unit = "epochs" if persistence.unit == "epochs" else "evaluations"
    return Watched(_streak(quantity, upper=upper, unit=unit, length=str(count)), aggregation, ("run",))


def _not_counted(count: int, known: tuple[int, ...], what: str) -> str:
    near = sorted(sorted(known, key=lambda one: abs(one - count))[:2])
    counted = ", ".join(map(str, known))
    more = " and from 101 on" if what == "steps" else ""
    return (
        f"{count} in a row are not counted: {what} in a row are counted for {counted}{more}; "
        f"write {' or '.join(map(str, near))}."
    )


def _lasting(persistence: Persistence | None, quantity: Quantity) -> tuple[tuple[Clock, float] | None, float]:
    if persistence is None:
        return None, 0.0
    if persistence.seconds is not None:
        return None, persistence.seconds
    if persistence.unit == "evaluations":
        raise MeaninglessClause(
            f"{quantity.name} is no evaluation metric: count steps or epochs, or give a time."
        )
    unit = "epochs" if persistence.unit == "epochs" else "steps"
    if persistence.count == 1 and unit == "steps":
        return None, 0.0
    return (_CLOCKS[unit], persistence.count), 0.0
