"""A user's rule file: what its rules say, each word checked, each fault with its place."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, cast

from trainswitch.errors import CommandError
from trainswitch.intervention.commands import check_action
from trainswitch_controller.policy import parse_duration
from trainswitch_controller.rulebook import quantities
from trainswitch_controller.rulebook.condition import Change, Clause, Comparison, Condition
from trainswitch_controller.rulebook.document import Fault, Node, Place, read
from trainswitch_controller.rulebook.grammar import ConditionError, parse
from trainswitch_controller.rulebook.quantity import Quantity
from trainswitch_controller.rulebook.vocabulary import UNITS

Severity = Literal["warning", "critical"]

KEYS = (
    "metric",
    "condition",
    "action",
    "params",
    "severity",
    "name",
    "description",
    "phases",
    "cooldown",
)
"""Keys of a rule."""

_ALERT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_PHASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_LONGEST_DESCRIPTION = 1000


@dataclasses.dataclass(frozen=True)
class Part:
    """One clause of a rule, and what it watches."""

    clause: Clause
    quantity: Quantity


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule, every word of it understood."""

    name: str
    """Of its alert."""
    parts: tuple[Part, ...]
    written: str
    """The condition as it stands in the file."""
    severity: Severity
    place: Place
    locate: Callable[[int], Place]
    """Returns the place of a character of the condition."""
    action: str | None = None
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    description: str | None = None
    phases: tuple[str, ...] = ()
    cooldown: str | None = None

    @property
    def condition(self) -> str:
        """The condition in English, each metric named."""
        return " and ".join(
            str(dataclasses.replace(part.clause, metric=part.quantity.name)) for part in self.parts
        )


def read_rules(path: Path, faults: list[Fault]) -> list[Rule]:
    """Return the rules of a file that are valid, and add to `faults` what is wrong with the others.

    Raises:
        RuleFileError: the file cannot be read, or is neither YAML nor JSON.
    """
    rules = [rule for entry in _entries(read(path), faults) if (rule := _Reader(entry, faults).rule())]
    _refuse_doubles(rules, faults)
    return rules


def is_rule_file(path: Path) -> bool:
    """Return whether a file looks like a user's rule file, and not like one of Prometheus'.

    Raises:
        RuleFileError: it cannot be read, or is neither YAML nor JSON.
    """
    root = read(path)
    return root.get("rules") is not None and root.get("groups") is None


def _entries(root: Node, faults: list[Fault]) -> Iterable[Node]:
    if not root.is_mapping:
        faults.append(Fault(root.place, "a rule file is a mapping with the key 'rules'."))
        return []
    for key, _ in root.pairs():
        if key.value != "rules":
            faults.append(Fault(key.place, _unknown("key", key.value, ("rules",))))
    rules = root.get("rules")
    if rules is None:
        faults.append(Fault(root.place, "the key 'rules' is missing."))
        return []
    entries = list(rules.entries())
    if not entries:
        faults.append(Fault(rules.place, "'rules' is a list of one rule or more."))
    return entries


class _Reader:
    """Reads one rule, and notes what is wrong with it."""

    def __init__(self, entry: Node, faults: list[Fault]) -> None:
        self._entry = entry
        self._faults = faults

    def rule(self) -> Rule | None:
        """Return the rule, or None where it has a fault."""
        before = len(self._faults)
        if not self._entry.is_mapping:
            self._fault(self._entry.place, "a rule is a mapping with 'metric' and 'condition'.")
            return None
        for key, _ in self._entry.pairs():
            if key.value not in KEYS:
                self._fault(key.place, _unknown("key", key.value, KEYS))
        metric, condition = self._text("metric", needed=True), self._text("condition", needed=True)
        quantity = self._quantity(metric.value, metric.place) if metric is not None else None
        parts = self._parts(condition, quantity) if condition is not None else ()
        action, params = self._action()
        severity = self._severity(action)
        name = self._name(parts)
        description = self._text("description")
        phases, cooldown = self._phases(), self._cooldown(action)
        if len(self._faults) > before or condition is None:
            return None
        return Rule(
            name=name,
            parts=parts,
            written=condition.value,
            severity=severity,
            place=self._entry.place,
            locate=condition.at,
            action=action,
            params=params,
            description=description.value if description is not None else None,
            phases=phases,
            cooldown=cooldown,
        )

    def _fault(self, place: Place, sentence: str) -> None:
        self._faults.append(Fault(place, sentence))

    def _text(self, key: str, *, needed: bool = False) -> Node | None:
        node = self._entry.get(key)
        if node is None:
            if needed:
                self._fault(self._entry.place, f"the rule has no {key!r}.")
            return None
        if not isinstance(node.value, str) or not node.value.strip():
            self._fault(node.place, f"{key} = {node.value!r} is no text.")
            return None
        if len(node.value) > _LONGEST_DESCRIPTION or "\x00" in node.value:
            self._fault(node.place, f"{key} is longer than {_LONGEST_DESCRIPTION} characters, or holds NUL.")
            return None
        return node

    def _quantity(self, name: str, place: Place) -> Quantity | None:
        found = quantities.find(name.strip())
        if found is None:
            near = difflib.get_close_matches(name, quantities.known_names(), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "'trainswitch metrics' lists what is exported."
            if not near or difflib.SequenceMatcher(None, name, near[0]).ratio() < 0.8:
                hint += f" (An evaluation metric of that name is written 'eval:{name[:40]}'.)"
            self._fault(place, f"metric {name[:80]!r} is exported by nobody: {hint}")
        return found

    def _parts(self, node: Node, own: Quantity | None) -> tuple[Part, ...]:
        try:
            condition = parse(node.value)
        except ConditionError as error:
            self._fault(node.at(error.column), error.message)
            return ()
        parts = []
        for clause in _shared_persistence(condition).clauses:
            quantity = own
            if clause.metric is not None:
                quantity = self._quantity(clause.metric, node.at(clause.metric_column))
            if quantity is not None:
                parts.append(Part(clause, _in_its_unit(clause, quantity)))
        return tuple(parts)

    def _action(self) -> tuple[str | None, dict[str, Any]]:
        node, given = self._text("action"), self._entry.get("params")
        if given is not None and not given.is_mapping:
            self._fault(given.place, "params is a mapping of names and values.")
            return None, {}
        if node is None:
            if given is not None:
                self._fault(given.place, "params without an action have no effect: add 'action'.")
            return None, {}
        try:
            check_action(node.value)
        except CommandError as error:
            self._fault(node.place, str(error))
            return None, {}
        # One by one, so that a fault is found where it stands.
        for key, value in given.pairs() if given is not None else ():
            try:
                check_action(node.value, {str(key.value): value.value})
            except CommandError as error:
                self._fault(value.place, str(error))
        params = {str(key): value for key, value in given.value.items()} if given is not None else {}
        return node.value, params

    def _severity(self, action: str | None) -> Severity:
        node = self._text("severity")
        if node is None:
            return "critical" if action is not None else "warning"
        if node.value not in ("warning", "critical"):
            self._fault(node.place, _unknown("severity", node.value, ("warning", "critical")))
        elif node.value == "warning" and action is not None:
            self._fault(
                node.place, "a warning causes no intervention: write 'critical', or leave out the action."
            )
        return cast("Severity", node.value)

    def _name(self, parts: tuple[Part, ...]) -> str:
        node = self._text("name")
        if node is None:
            return "Custom" + "And".join(_title(part) for part in parts)
        if not _ALERT_NAME.fullmatch(node.value):
            self._fault(
                node.place,
                f"name {node.value[:80]!r} is not allowed: use letters, digits and '_', a letter first.",
            )
        return str(node.value)

    def _phases(self) -> tuple[str, ...]:
        node = self._entry.get("phases")
        if node is None:
            return ()
        names = [(entry.value, entry.place) for entry in node.entries()]
        if not names:
            self._fault(node.place, "phases is a list of one phase or more.")
        for name, place in names:
            if not isinstance(name, str) or not _PHASE.fullmatch(name):
                self._fault(place, f"phase {name!r} is no name of a phase, as in the run's configuration.")
        return tuple(str(name) for name, _ in names)

    def _cooldown(self, action: str | None) -> str | None:
        node = self._text("cooldown")
        if node is None:
            return None
        try:
            parse_duration(node.value)
        except ValueError as error:
            self._fault(node.place, f"cooldown = {node.value!r}: {error}.")
        if action is None:
            self._fault(node.place, "cooldown without an action has no effect: add 'action'.")
        return str(node.value)


def _unknown(what: str, word: object, known: Iterable[str]) -> str:
    known = tuple(known)
    near = difflib.get_close_matches(str(word), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}."
    return f"{what} {str(word)[:80]!r} is not known: {hint}"


def _shared_persistence(condition: Condition) -> Condition:
    """Return the condition with the persistence at its end given to all parts that have none of their own."""
    last = condition.clauses[-1].persistence
    if last is None:
        return condition
    return Condition(
        tuple(
            clause if clause.persistence is not None else dataclasses.replace(clause, persistence=last)
            for clause in condition.clauses
        )
    )


def _in_its_unit(clause: Clause, quantity: Quantity) -> Quantity:
    """Return what a quantity is when it is measured in the unit of the clause's limit."""
    predicate = clause.predicate
    limit = predicate.limit if isinstance(predicate, Comparison) else getattr(predicate, "amount", None)
    unit = getattr(limit, "unit", "")
    other = quantity.measured_in.get(UNITS[unit][0]) if unit else None
    found = quantities.find(other) if other is not None else None
    return found or quantity


def _title(part: Part) -> str:
    name = "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", part.quantity.name))
    predicate = part.clause.predicate
    if isinstance(predicate, Comparison):
        return (
            name + {">": "High", ">=": "High", "<": "Low", "<=": "Low", "==": "Reached"}[predicate.operator]
        )
    if isinstance(predicate, Change):
        return name + ("Dropped" if predicate.direction == "falls" else "Risen")
    return f"{name}NonFinite"


def _refuse_doubles(rules: list[Rule], faults: list[Fault]) -> None:
    seen: dict[tuple[str, str], Rule] = {}
    for rule in rules:
        first = seen.setdefault((rule.name, rule.severity), rule)
        if first is not rule:
            message = (
                f"the alert {rule.name!r} of severity {rule.severity} is in line {first.place.line} already: "
                "give one of the two a 'name' of its own."
            )
            faults.append(Fault(rule.place, message))
