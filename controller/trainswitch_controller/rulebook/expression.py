"""From one clause of a rule to PromQL: what it reads, what it compares with, and how it counts what lasts.

What is counted in steps or evaluations is counted by the exporter (streaks) or against the run's own counters
(clocks), never in scrapes: a rule means the same for steps of 5 ms and of a minute.
"""

from __future__ import annotations

import dataclasses

from trainswitch_controller.rulebook.condition import (
    Amount,
    Change,
    Clause,
    Comparison,
    NonFinite,
    Operator,
    mirrored,
    plain,
)
from trainswitch_controller.rulebook.limits import Limit, Sample, limit_of, limit_of_change
from trainswitch_controller.rulebook.quantity import Quantity
from trainswitch_controller.rulebook.rules import Part
from trainswitch_controller.rulebook.sources import LOOKBACK, Input, duration
from trainswitch_controller.rulebook.watched import Clock, MeaninglessClause, Watched, watch

_RECENT_NONFINITE = 900.0
"""Seconds within which several non-finite values have to lie to be counted together."""
_MEMORY = "1d"
"""How long a clock remembers: what shall last longer is given in hours."""
_WIDE = 100
"""Characters beyond which a comparison stands on two lines."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What generated cases feed to a clause so that it just holds, and so that it just does not."""

    holds: tuple[Sample, ...]
    holds_not: tuple[Sample, ...]
    begins: float = 0.0
    """Seconds after which the value changes."""
    takes: float = 0.0
    """Seconds after that until the clause sees it."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A recording rule that a clause needs."""

    name: str
    expr: str


@dataclasses.dataclass(frozen=True)
class CompiledClause:
    """One clause as PromQL."""

    expr: str
    """Filters: a series per run, or per rank, where the clause holds; its value is the watched one."""
    labels: tuple[str, ...]
    lowest: bool
    """Whether the worst value is the lowest."""
    watched: str
    """Selector of the one series behind it, for people who look for the worst; empty where it is not one."""
    counts: bool = False
    """Whether its value is a number of occurrences."""
    records: tuple[Record, ...] = ()
    waits: float = 0.0
    """Seconds for which it has to hold."""
    clock: tuple[Clock, float] | None = None
    """What it counts, and how much of it has to pass."""
    evidence: Evidence | None = None
    """None where promtool cannot be fed the series, as with percentiles of a histogram."""


def compile_clause(part: Part, record_prefix: str) -> CompiledClause:
    """Return a clause as PromQL.

    Args:
        part: the clause, and what it watches.
        record_prefix: begins the names of its recording rules, after their level.

    Raises:
        MeaninglessClause: the clause cannot be judged of this metric.
    """
    clause, quantity = part.clause, part.quantity
    predicate = clause.predicate
    if isinstance(predicate, NonFinite):
        return _nonfinite(clause, quantity)
    operator: Operator
    if isinstance(predicate, Comparison):
        operator = predicate.operator
    else:
        operator = predicate.operator if predicate.direction == "rises" else mirrored(predicate.operator)
    watched = watch(clause, quantity, operator)
    if isinstance(predicate, Comparison):
        limit = limit_of(predicate, quantity, watched)
    else:
        limit = limit_of_change(predicate, quantity, watched)
    matching = f"on ({', '.join(watched.labels)}) " if limit.is_vector else ""
    held = f"{watched.expr} {operator} {matching}{limit.expr}"
    if len(held) > _WIDE:
        held = f"{watched.expr}\n{operator} {matching}{limit.expr}"
    if _relative_to_steps(predicate, quantity):
        ready = f"min by ({', '.join(watched.labels)}) (last_over_time(train_baseline_ready[{LOOKBACK}]))"
        held = f"{held}\nand on ({', '.join(watched.labels)}) {ready} == 1"
    records, held = _timed(held, watched, record_prefix)
    return CompiledClause(
        expr=held,
        labels=watched.labels,
        lowest=operator in ("<", "<="),
        watched=quantity.value.selector or "",
        records=records,
        waits=watched.waits,
        clock=watched.clock,
        evidence=_evidence(watched, operator, limit, warm=_relative_to_steps(predicate, quantity)),
    )


def _relative_to_steps(predicate: Comparison | Change | NonFinite, quantity: Quantity) -> bool:
    """Return whether a clause compares steps with others, which has to wait for the warm-up's end."""
    if quantity.kind != "step" or isinstance(predicate, NonFinite):
        return False
    return isinstance(predicate, Change) or not isinstance(predicate.limit, Amount)


def _timed(held: str, watched: Watched, record_prefix: str) -> tuple[tuple[Record, ...], str]:
    """Return an expression that has to hold while its clock goes on, and the records that know since when.

    The clock is a counter of the run's own, and the record is its reading at the last moment at which the
    condition did not hold. Without such a moment the first reading stands for it, and so it does after the
    counter began anew.
    """
    if watched.clock is None:
        return (), held
    metric, count = watched.clock
    unit = "steps" if metric == "train_steps_total" else "epochs"
    clock, calm = f"run:{record_prefix}:{unit}", f"run:{record_prefix}:calm_{unit}"
    records = (
        Record(clock, f"max by (run) (last_over_time({metric}[{LOOKBACK}]))"),
        Record(calm, f"{clock}\nunless on (run) (\n{_indented(held)}\n)"),
    )
    since = (
        f"(\n    last_over_time({calm}[{_MEMORY}]) <= on (run) {clock}\n"
        f"    or on (run) min_over_time({clock}[{_MEMORY}])\n  )"
    )
    return records, f"{held}\nand on (run) (\n  {clock} - on (run) {since}\n  >= {plain(count)}\n)"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _nonfinite(clause: Clause, quantity: Quantity) -> CompiledClause:
    if quantity.nonfinite is None:
        raise MeaninglessClause(
            f"values of {quantity.name} that are no numbers are not counted; those of loss, grad_norm, "
            "weights, activations and evaluation metrics are."
        )
    persistence = clause.persistence
    if persistence is not None and (persistence.seconds is not None or persistence.unit == "epochs"):
        raise MeaninglessClause("a value that is no number is counted in times: write 'for 3 times'.")
    count = int(persistence.count) if persistence is not None else 1
    series, labels = quantity.nonfinite, ("run", "rank")
    now = f"last_over_time({series}[{LOOKBACK}])"
    if count == 1:
        earlier = f"last_over_time({series}[5m] offset {LOOKBACK})"
        news = f"{now} > {earlier} or {now} > min_over_time({series}[{LOOKBACK}])"
    else:
        news = f"{now} - min_over_time({series}[{duration(_RECENT_NONFINITE)}]) >= {count}"
    # A new trainer's first sample has nothing before it to be compared with.
    young = (
        f"{now} >= {count} and on (run, rank) "
        f"time() - last_over_time(train_start_timestamp_seconds[{LOOKBACK}]) < 60"
    )
    metric, _, rest = series.partition("{")
    label, _, value = rest.rstrip("}").partition("=")
    counter = Input(metric, ((label, value.strip('"')),))
    started = Sample(Input("train_start_timestamp_seconds", level=(0.0, 0.0)), 0.0, 0.0)
    return CompiledClause(
        expr=f"max by (run, rank) (\n  {news}\n  or {young}\n)",
        labels=labels,
        lowest=False,
        watched=series,
        counts=True,
        evidence=Evidence(
            (started, Sample(counter, 2.0, 2.0 + count)),
            (started, Sample(counter, 2.0, 2.0 + count - 1)),
            begins=120.0,
            takes=5.0,
        ),
    )


def _evidence(watched: Watched, operator: Operator, limit: Limit, *, warm: bool) -> Evidence | None:
    if not watched.source.inputs:
        return None
    # Not at the limit itself: a mean of counters and a share of bytes are not exact to the last digit.
    near = abs(limit.number) * limit.near or 1e-6
    beyond = {">": near, ">=": near, "<": -near, "<=": -near, "==": 0.0}[operator]
    ready = (Sample(Input("train_baseline_ready"), 1.0, 1.0),) if warm else ()

    def fed(value: float) -> tuple[Sample, ...]:
        start = value if limit.start is None else limit.start
        return tuple(Sample(one, start, value) for one in watched.source.inputs) + limit.samples + ready

    return Evidence(
        fed(limit.number + beyond),
        fed(limit.number - beyond if beyond else limit.number + near),
        begins=limit.begins,
        takes=limit.takes,
    )
