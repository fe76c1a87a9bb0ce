"""In which order rules are worked out: those that others read come first."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator, Mapping, Sequence

from trainswitch_controller.errors import ReplayRulesError
from trainswitch_controller.promql import Selector
from trainswitch_controller.replay.rule_files import Rule

_STATES = ("pending", "firing")


def dependencies(rules: Sequence[Rule]) -> dict[Rule, set[Rule]]:
    """Return, for each alert and each record that an alert needs, the rules whose results it reads.

    Raises:
        ReplayRulesError: rules read each other in a circle.
    """
    needed = needed_rules(rules)
    try:
        graphlib.TopologicalSorter(needed).prepare()
    except graphlib.CycleError as error:
        circle = " → ".join(f"{rule.title} in {rule.source}" for rule in error.args[1])
        raise ReplayRulesError(
            f"rules read each other in a circle, which a replay cannot follow: {circle}; let one of them "
            "read the metrics themselves."
        ) from None
    return needed


def needed_rules(rules: Sequence[Rule]) -> dict[Rule, set[Rule]]:
    """Return the same as `dependencies`, circles and all."""
    written: dict[str, list[tuple[Rule, Mapping[str, str]]]] = {}
    for rule in rules:
        for name, labels in written_by(rule):
            written.setdefault(name, []).append((rule, labels))
    needed: dict[Rule, set[Rule]] = {}
    waiting = [rule for rule in rules if rule.is_alert]
    while waiting:
        rule = waiting.pop()
        if rule not in needed:
            needed[rule] = {
                other
                for selector in rule.reads
                for name in selector.names_among(set(written))
                for other, labels in written[name]
                if may_select(selector, labels)
            }
            waiting += needed[rule]
    return needed


def written_by(rule: Rule) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the name of each series that a rule writes, and what is known beforehand of its labels."""
    if not rule.is_alert:
        yield rule.name, rule.labels
        return
    labels = {**rule.labels, "alertname": rule.name}
    yield "ALERTS_FOR_STATE", labels
    for state in _STATES:
        yield "ALERTS", {**labels, "alertstate": state}


def may_select(selector: Selector, labels: Mapping[str, str], *, complete: bool = False) -> bool:
    """Return whether a selector may select a series of the right name, by what is known of its labels.

    Args:
        selector: whose name is not looked at.
        labels: of the series.
        complete: whether the series has no others.
    """
    return all(
        one.allows(labels.get(one.label, ""))
        for one in selector.matchers
        if one.label != "__name__" and (complete or one.label in labels)
    )
