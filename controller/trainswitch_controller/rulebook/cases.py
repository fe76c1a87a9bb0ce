"""Cases for promtool, generated from compiled rules: an alert fires where its condition just holds, else not.

They test what was compiled against the values that the exporter would show; that the exporter counts steps
and evaluations rightly is tested where it does so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainswitch_controller.rulebook.compiler import CompiledRule
from trainswitch_controller.rulebook.condition import plain
from trainswitch_controller.rulebook.limits import Sample
from trainswitch_controller.rulebook.sources import EXAMPLE, Input

_SETTLED = 20.0
"""Seconds after which every expression knows its series."""
_CLOCKED = 20.0
"""Seconds in which what a rule counts passes, however much that is."""
_MARGIN = 15.0
"""A sample and an evaluation."""
_MOST_WAIT = 300.0
"""Seconds of ``for`` beyond which a trouble becomes its own past."""
_FAST, _SLOW = 1.0, 15.0
_LONGEST_FAST = 300.0
"""Seconds beyond which a case takes samples and evaluations every 15 s, or it would take promtool minutes."""


def case_documents(
    compiled: Sequence[CompiledRule], rule_file: str
) -> tuple[dict[str, dict[str, Any]], list[tuple[str, str]]]:
    """Return promtool's test files by their endings, and (alert, reason) for the rules that have no case.

    Args:
        compiled: the rules.
        rule_file: path of the rule file, as the test files shall name it.
    """
    tests: list[dict[str, Any]] = []
    without: list[tuple[str, str]] = []
    for one in compiled:
        try:
            tests += _cases(one)
        except _NoCase as reason:
            without.append((one.rule.name, str(reason)))
    documents = {
        ending: {
            "rule_files": [rule_file],
            "evaluation_interval": interval,
            "tests": [case for case in tests if case["interval"] == interval],
        }
        for ending, interval in (("test.yml", f"{plain(_FAST)}s"), ("slow.test.yml", f"{plain(_SLOW)}s"))
    }
    return {ending: found for ending, found in documents.items() if found["tests"]}, without


class _NoCase(Exception):
    """promtool cannot be fed what the rule reads."""


def _cases(one: CompiledRule) -> list[dict[str, Any]]:
    evidence = [clause.evidence for clause in one.clauses]
    if any(found is None for found in evidence):
        raise _NoCase("a percentile of a histogram cannot be set to a value")
    known = [found for found in evidence if found is not None]
    clocks: dict[str, float] = {}
    for clause in one.clauses:
        if clause.clock is not None:
            metric, count = clause.clock
            clocks[metric] = max(count, clocks.get(metric, 0.0))
    begins = max(found.begins for found in known)
    lasts = one.waits + max([_CLOCKED if clocks else 0.0, *(found.takes for found in known)])
    if one.waits > _MOST_WAIT and any(found.takes > _MOST_WAIT / 2 for found in known):
        raise _NoCase("what it is compared with changes while it lasts")
    due = (begins or _SETTLED) + lasts + _MARGIN
    extra = [_ticking(metric, count) for metric, count in clocks.items()]
    extra += [Sample(Input("train_phase", (("phase", phase),)), 1.0, 1.0) for phase in one.rule.phases[:1]]
    holds = [sample for found in known for sample in found.holds] + extra
    said = one.rule.condition
    cases = [
        _case(f"{one.rule.name} fires where {said}.", one, holds, begins, [(due, True), *_early(one, begins)])
    ]
    # With several clauses, each in turn is the one that does not hold.
    for number in range(len(known)):
        samples = [
            sample
            for position, other in enumerate(known)
            for sample in (other.holds_not if position == number else other.holds)
        ]
        what = "it" if len(known) == 1 else f"part {number + 1}"
        cases.append(
            _case(
                f"{one.rule.name} stays silent where {what} is just not so: {said}.",
                one,
                samples + extra,
                begins,
                [(due, False)],
            )
        )
    return cases


def _ticking(metric: str, count: float) -> Sample:
    """Return a counter that takes `_CLOCKED` for what has to pass."""
    return Sample(Input(metric, level=(0.0, 0.0), slope=(0.0, count / _CLOCKED)), 0.0, 0.0)


def _early(one: CompiledRule, begins: float) -> list[tuple[float, bool]]:
    """Return a moment at which the condition holds and has not lasted long enough, where it has to last."""
    needed = _CLOCKED if any(clause.clock for clause in one.clauses) else one.waits
    return [(begins + math.floor(needed / 2), False)] if needed >= 2.0 else []


def _case(
    name: str,
    one: CompiledRule,
    samples: Sequence[Sample],
    begins: float,
    moments: Sequence[tuple[float, bool]],
) -> dict[str, Any]:
    end = max(moment for moment, _ in moments) + 1.0
    interval = _FAST if end <= _LONGEST_FAST else _SLOW
    series: dict[str, str] = {}
    for sample in samples:
        values = _values(sample, begins, end, interval)
        if series.setdefault(sample.input.series, values) != values:
            raise _NoCase(f"two parts of the condition want different values of {sample.input.metric}")
    firing = {"run": EXAMPLE["run"], "severity": one.rule.severity}
    labels = ", ".join(f'{key}="{value}"' for key, value in firing.items())
    expr = f'count by (run, severity) (ALERTS{{alertname="{one.rule.name}", {labels}, alertstate="firing"}})'
    return {
        "name": name,
        "interval": f"{plain(interval)}s",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{plain(moment)}s",
                "exp_samples": [{"labels": f"{{{labels}}}", "value": 1}] if fires else [],
            }
            for moment, fires in sorted(moments)
        ],
    }


def _values(sample: Sample, begins: float, end: float, interval: float) -> str:
    """Return the series in promtool's notation: from 0 to `begins` before the trouble, to `end` after it."""
    given = sample.input
    level = [given.level[0] * value + given.level[1] for value in (sample.before, sample.after)]
    slope = [given.slope[0] * value + given.slope[1] for value in (sample.before, sample.after)]
    first = math.ceil(begins / interval)
    rest = math.ceil((end - first * interval) / interval)
    grown = slope[0] * first * interval
    parts = [_run(level[0], slope[0] * interval, first - 1)] if first else []
    parts.append(_run(level[1] + grown, slope[1] * interval, rest))
    return " ".join(parts)


def _run(start: float, step: float, times: int) -> str:
    return f"{plain(start)}{'-' if step < 0 else '+'}{plain(abs(step))}x{times}"
