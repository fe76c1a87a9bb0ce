"""From a user's rules to Prometheus' rules, entries of the policy, and what shall be said to people."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from trainswitch_controller.errors import RuleFileError
from trainswitch_controller.rulebook.condition import plain
from trainswitch_controller.rulebook.document import Fault
from trainswitch_controller.rulebook.expression import CompiledClause, Record, compile_clause
from trainswitch_controller.rulebook.rules import Rule, read_rules
from trainswitch_controller.rulebook.sources import LOOKBACK
from trainswitch_controller.rulebook.watched import MeaninglessClause

FAST_INTERVAL = "1s"
"""Of the rules that act: a fault should be answered within a few seconds."""
SLOW_INTERVAL = "10s"
"""Of the others."""


@dataclasses.dataclass(frozen=True)
class CompiledRule:
    """One rule as Prometheus evaluates it."""

    rule: Rule
    clauses: tuple[CompiledClause, ...]
    expr: str

    @property
    def records(self) -> tuple[Record, ...]:
        """The recording rules that stand before the alert."""
        return tuple(record for clause in self.clauses for record in clause.records)

    @property
    def waits(self) -> float:
        """Seconds of ``for``."""
        return max(clause.waits for clause in self.clauses)

    @property
    def interval(self) -> str:
        """How often it is evaluated."""
        return FAST_INTERVAL if self.rule.action is not None else SLOW_INTERVAL


def compile_file(path: Path, *, taken: Collection[str] = ()) -> list[CompiledRule]:
    """Return the rules of a user's rule file in their compiled form.

    Args:
        path: of the rule file.
        taken: names of alerts that exist already.

    Raises:
        RuleFileError: the file cannot be read, or something in it is not valid; it names all faults.
    """
    faults: list[Fault] = []
    compiled = []
    for rule in read_rules(path, faults):
        if rule.name in taken:
            faults.append(
                Fault(rule.place, f"the alert {rule.name!r} exists already: give the rule another 'name'.")
            )
        found = _compile(rule, faults)
        if found is not None:
            compiled.append(found)
    if faults:
        raise RuleFileError([str(fault) for fault in sorted(faults, key=lambda fault: fault.place)])
    return compiled


def _compile(rule: Rule, faults: list[Fault]) -> CompiledRule | None:
    clauses = []
    prefix = re.sub(r"\W", "_", f"{rule.name}_{rule.severity}".lower())
    for number, part in enumerate(rule.parts):
        try:
            clauses.append(compile_clause(part, f"{prefix}{number or ''}"))
        except MeaninglessClause as problem:
            faults.append(Fault(rule.locate(part.clause.column), str(problem)))
    if len(clauses) < len(rule.parts):
        return None
    if len({clause.waits for clause in clauses}) > 1:
        message = "the parts of the condition last differently long: give all the same time, or count steps."
        faults.append(Fault(rule.place, message))
        return None
    return CompiledRule(rule, tuple(clauses), _joined(rule, clauses))


def _joined(rule: Rule, clauses: Sequence[CompiledClause]) -> str:
    """Return the alert's expression: one series per run, with the worst value of the first clause."""
    parts = [
        clause.expr
        if clause.labels == ("run",)
        else f"{'min' if clause.lowest else 'max'} by (run) (\n{_indented(clause.expr)}\n)"
        for clause in clauses
    ]
    if rule.phases:
        pattern = "|".join(rule.phases)
        parts.append(f'max by (run) (last_over_time(train_phase{{phase=~"{pattern}"}}[{LOOKBACK}]) == 1)')
    return "\nand on (run)\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def policy_entries(compiled: Sequence[CompiledRule]) -> dict[str, dict[str, Any]]:
    """Return the policy's entries: alert → ladder, for the rules that act."""
    entries: dict[str, dict[str, Any]] = {}
    for one in compiled:
        rule = one.rule
        if rule.action is None:
            continue
        rung: dict[str, Any] = {"action": rule.action}
        if rule.params:
            rung["params"] = dict(rule.params)
        entry: dict[str, Any] = {"ladder": [rung]}
        if rule.cooldown is not None:
            entry["cooldown"] = rule.cooldown
        entries[rule.name] = entry
    return entries


def rule_document(compiled: Sequence[CompiledRule], stem: str) -> dict[str, Any]:
    """Return the content of a Prometheus rule file.

    Args:
        compiled: the rules.
        stem: begins the names of its groups.
    """
    groups = []
    for interval, suffix in ((FAST_INTERVAL, "rules"), (SLOW_INTERVAL, "slow.rules")):
        chosen = [one for one in compiled if one.interval == interval]
        if not chosen:
            continue
        rules: list[dict[str, Any]] = []
        for one in chosen:
            rules += [{"record": record.name, "expr": _block(record.expr)} for record in one.records]
            rules.append(_alert(one))
        groups.append({"name": f"{stem}.{suffix}", "interval": interval, "rules": rules})
    return {"groups": groups}


def _alert(one: CompiledRule) -> dict[str, Any]:
    rule = one.rule
    labels: dict[str, str] = {"severity": rule.severity}
    if rule.action is not None:
        labels["action"] = rule.action
    alert: dict[str, Any] = {"alert": rule.name, "expr": _block(one.expr)}
    if one.waits:
        alert["for"] = f"{plain(one.waits)}s"
    alert["labels"] = labels
    alert["annotations"] = {
        "summary": f"The rule '{rule.condition}' holds.",
        "description": description(one),
        "runbook_url": f"runbooks/{rule.name}.md",
    }
    return alert


def _block(expr: str) -> str:
    return expr if "\n" not in expr else f"{expr}\n"


_FORMATS = {
    "ratio": "humanizePercentage",
    "bytes": "humanize1024",
    "seconds": "humanizeDuration",
}


def description(one: CompiledRule) -> str:
    """Return the template of what people are told: the value, the condition, and the worst offender."""
    rule, first = one.rule, one.clauses[0]
    quantity = rule.parts[0].quantity
    said = ""
    if rule.description:  # a template's braces in it would be taken for one
        said = rule.description.rstrip(".").replace("{{", "{ {").replace("}}", "} }") + ". "
    shown = f"{{{{ $value | {_FORMATS.get(quantity.unit, 'humanize')} }}}}"
    if first.counts:
        state = f"has counted {{{{ $value }}}} values of {quantity.name} that are no numbers"
    else:
        state = f"has {quantity.name} at {shown}"
    text = f"{said}Run {{{{ $labels.run }}}} {state}; the rule is '{rule.condition}'."
    return text + (_offender(first) if first.watched else "")


def _offender(clause: CompiledClause) -> str:
    """Return the part of the template that names the rank with the worst value now."""
    name, _, matchers = clause.watched.partition("{")
    inner = ", ".join(["run=%q", *([matchers.rstrip("}")] if matchers else [])]).replace('"', '\\"')
    pick, worst = ("bottomk", "Lowest") if clause.lowest else ("topk", "Highest")
    return (
        f' {{{{- range query (printf "{pick}(1, {name}{{{inner}}})" $labels.run) }}}} {worst} now on rank '
        "{{ .Labels.rank }}: {{ .Value | humanize }}.{{ end }}"
    )
