"""What a clause compares its value with: a number, a multiple of what is usual, or what the value was."""

from __future__ import annotations

import dataclasses

from trainswitch_controller.rulebook.condition import Amount, Change, Comparison, Reference, Relative, plain
from trainswitch_controller.rulebook.quantity import Quantity
from trainswitch_controller.rulebook.sources import Input, Source
from trainswitch_controller.rulebook.vocabulary import UNITS
from trainswitch_controller.rulebook.watched import MeaninglessClause, Watched, aggregated

_PAST = 3900.0
"""Seconds that a case needs before a change against the hour before."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """A series of a generated case: the value that its expression has before and after the trouble begins."""

    input: Input
    before: float
    after: float


@dataclasses.dataclass(frozen=True)
class Limit:
    """What a value is compared with: PromQL, and the number that it is in a generated case."""

    expr: str
    number: float
    samples: tuple[Sample, ...] = ()
    is_vector: bool = True
    start: float | None = None
    """Value before the trouble, where the limit depends on it."""
    begins: float = 0.0
    takes: float = 0.0
    near: float = 1e-3
    """Share of the limit by which a generated case misses it."""


def limit_of(predicate: Comparison, quantity: Quantity, watched: Watched) -> Limit:
    """Return what a value is compared with.

    Raises:
        MeaninglessClause: the metric has no such reference, or is measured in another unit.
    """
    limit = predicate.limit
    if isinstance(limit, Amount):
        number = _in_base_units(limit, quantity)
        return Limit(plain(number), number, is_vector=False)
    if isinstance(limit, Relative):
        return _times(limit.factor, limit.reference, quantity, watched)
    if quantity.sigma is None:
        raise MeaninglessClause(
            f"{quantity.name} has no control chart, and so no sigma: compare it with its "
            f"{' or '.join(quantity.references) or 'value'}."
        )
    center, sigma = quantity.sigma
    sign = "+" if predicate.operator in (">", ">=") else "-"
    c = aggregated("max", center, watched.labels)
    s = aggregated("max", sigma, watched.labels)
    number = 10.0 + (limit.count if sign == "+" else -limit.count)
    samples = tuple(
        Sample(one, value, value) for source, value in ((center, 10.0), (sigma, 1.0)) for one in source.inputs
    )
    return Limit(f"({c} {sign} {plain(limit.count)} * {s})", number, samples)


def _reference(name: Reference, quantity: Quantity) -> Source:
    if name not in quantity.references:
        known = ", ".join(quantity.references)
        way = f"use one of {known}." if known else "write a number, or a change 'within 10 minutes'."
        raise MeaninglessClause(f"{quantity.name} has no {name} to compare it with: {way}")
    return quantity.references[name]


def _times(factor: float, name: Reference, quantity: Quantity, watched: Watched) -> Limit:
    source, usual = _reference(name, quantity), 8.0
    expr = aggregated("max", source, watched.labels)
    if factor != 1.0:
        expr = f"({plain(factor)} * {expr})"
    return _against(expr, factor * usual, usual, name, quantity, source)


def _against(
    expr: str, number: float, usual: float, name: Reference, quantity: Quantity, source: Source
) -> Limit:
    if name in quantity.own_past:
        return Limit(expr, number, start=usual, begins=_PAST, takes=300.0, near=0.02)
    return Limit(expr, number, tuple(Sample(one, usual, usual) for one in source.inputs))


def limit_of_change(change: Change, quantity: Quantity, watched: Watched) -> Limit:
    """Return the value that is reached by a change.

    Raises:
        MeaninglessClause: the metric has nothing that it could have changed from.
    """
    usual, sign = 8.0, (1.0 if change.direction == "rises" else -1.0)
    if change.within is not None:
        function = "min_over_time" if change.direction == "rises" else "max_over_time"
        past = Source(quantity.value.over(function, change.within), ())
        base = aggregated("max" if change.direction == "falls" else "min", past, watched.labels)
    else:
        name = change.reference or quantity.usual
        if name is None:
            verb = "drops" if change.direction == "falls" else "rises"
            raise MeaninglessClause(
                f"from what {quantity.name} {verb} is not said: write '{verb} > {change.amount} within "
                "10 minutes'."
            )
        if name == "best" and quantity.worse not in (None, change.direction):
            raise MeaninglessClause(
                f"{quantity.name} gets better when it {change.direction}, and cannot pass its own best: "
                f"write '{'rises' if change.direction == 'falls' else 'drops'}', or 'from mean'."
            )
        since, source = name, _reference(name, quantity)
        base = aggregated("max", source, watched.labels)
    if change.amount.unit == "%":
        share = change.amount.number / 100.0
        number = usual + sign * share * usual
        if quantity.signed:
            expr = f"({base} {'+' if sign > 0 else '-'} {plain(share)} * abs({base}))"
        else:
            expr = f"({plain(round(1.0 + sign * share, 12))} * {base})"
    else:
        amount = _in_base_units(change.amount, quantity)
        number = usual + sign * amount
        expr = f"({base} {'+' if sign > 0 else '-'} {plain(amount)})"
    if change.within is not None:
        return Limit(expr, number, start=usual, begins=30.0, takes=0.0)
    return _against(expr, number, usual, since, quantity, source)


def _in_base_units(amount: Amount, quantity: Quantity) -> float:
    if not amount.unit:
        if quantity.unit == "ratio" and amount.number > 1.0 and quantity.name != "host_load":
            raise MeaninglessClause(
                f"{quantity.name} is a share from 0 to 1: write '{plain(amount.number)}%', or at most 1."
            )
        return amount.number
    measures, factor = UNITS[amount.unit]
    if measures == "ratio" and quantity.kind == "evaluation":
        measures = quantity.unit
    if measures != quantity.unit:
        is_in = f"is measured in {quantity.unit}" if quantity.unit else "is a number without a unit"
        raise MeaninglessClause(f"{str(amount)!r} does not fit: {quantity.name} {is_in}.")
    return amount.number / 100.0 if amount.unit == "%" else amount.number * factor
