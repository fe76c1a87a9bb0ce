"""What a condition says, once its words are understood; each part prints itself as a condition in English."""

from __future__ import annotations

import dataclasses
from typing import Literal

Statistic = Literal["max", "min", "mean", "median", "value"] | str
"""``p50`` to ``p99`` besides those named."""
Reference = Literal["mean", "median", "baseline", "best"]
Operator = Literal[">", ">=", "<", "<=", "=="]
Direction = Literal["falls", "rises"]
CountUnit = Literal["times", "steps", "epochs", "evaluations"]
TimeUnit = Literal["seconds", "minutes", "hours"]

SECONDS: dict[str, float] = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
"""How long each unit of time is."""

_MIRRORED: dict[Operator, Operator] = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "==": "=="}


def mirrored(operator: Operator) -> Operator:
    """Return the operator that holds where `operator` holds with its sides exchanged."""
    return _MIRRORED[operator]


def plain(value: float) -> str:
    """Return a number as a person would write it, and so that it reads back as the same number."""
    text = repr(value)
    return text.removesuffix(".0").replace("e+", "e")


@dataclasses.dataclass(frozen=True)
class Amount:
    """A number with the unit that was written behind it."""

    number: float
    unit: str = ""
    """A key of `vocabulary.UNITS`, or empty."""

    def __str__(self) -> str:
        return f"{plain(self.number)}{self.unit}"


@dataclasses.dataclass(frozen=True)
class Relative:
    """A multiple of what the metric usually is."""

    factor: float
    reference: Reference

    def __str__(self) -> str:
        return f"{plain(self.factor)}x {self.reference}"


@dataclasses.dataclass(frozen=True)
class Sigmas:
    """So many standard deviations above or below the centre line of the control chart."""

    count: float

    def __str__(self) -> str:
        return f"{plain(self.count)} sigma"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The value against a limit."""

    operator: Operator
    limit: Amount | Relative | Sigmas

    def __str__(self) -> str:
        return f"{self.operator} {self.limit}"


@dataclasses.dataclass(frozen=True)
class Change:
    """The value against what it was."""

    direction: Direction
    operator: Literal[">", ">="]
    amount: Amount
    """In percent of the reference, or in the metric's own unit."""
    reference: Reference | None = None
    """From which; None for what is natural for the metric."""
    within: float | None = None
    """Seconds in which it changes, instead of a reference."""

    def __str__(self) -> str:
        verb = "drops" if self.direction == "falls" else "rises"
        since = f" from {self.reference}" if self.reference else ""
        span = f" within {_span(self.within)}" if self.within is not None else ""
        return f"{verb} {self.operator} {self.amount}{since}{span}"


def _span(seconds: float) -> str:
    unit = next(name for name, length in reversed(SECONDS.items()) if seconds % length == 0 or length == 1.0)
    return f"{plain(seconds / SECONDS[unit])} {unit}"


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """The value is NaN or infinite."""

    def __str__(self) -> str:
        return "is nan"


@dataclasses.dataclass(frozen=True)
class Persistence:
    """For how long the rest has to hold."""

    count: float
    """Whole, unless it is a time."""
    unit: CountUnit | TimeUnit

    @property
    def seconds(self) -> float | None:
        """The time it stands for; None where it counts something."""
        return self.count * SECONDS[self.unit] if self.unit in SECONDS else None

    def __str__(self) -> str:
        unit = self.unit if self.count != 1 or self.unit == "times" else self.unit.removesuffix("s")
        return f"for {plain(self.count)} {unit}"


@dataclasses.dataclass(frozen=True)
class Clause:
    """One part of a condition."""

    predicate: Comparison | Change | NonFinite
    metric: str | None = None
    """As written; None for the rule's own."""
    statistic: Statistic | None = None
    persistence: Persistence | None = None
    column: int = dataclasses.field(default=0, compare=False)
    """Where its first word stands in the condition, counted from 0."""
    metric_column: int = dataclasses.field(default=0, compare=False)

    def __str__(self) -> str:
        parts = (self.metric, self.statistic, self.predicate, self.persistence)
        return " ".join(str(part) for part in parts if part is not None)


@dataclasses.dataclass(frozen=True)
class Condition:
    """Clauses that all have to hold."""

    clauses: tuple[Clause, ...]

    def __str__(self) -> str:
        return " and ".join(str(clause) for clause in self.clauses)
