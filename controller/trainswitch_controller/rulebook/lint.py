"""What promtool does not see in a rule file: rules that can never fire, alerts that nobody could act on."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from trainswitch.intervention.commands import ACTIONS
from trainswitch.metrics.catalogue import COMMON_LABELS
from trainswitch_controller.errors import PromqlError
from trainswitch_controller.policy import Policy
from trainswitch_controller.promql import Selector, selectors
from trainswitch_controller.rulebook import series
from trainswitch_controller.rulebook.rule_files import PrometheusRule

SEVERITIES = ("critical", "warning", "info", "none")
_TARGET_LABELS = frozenset({*COMMON_LABELS, "job", "instance", "node", "le", "__name__"})
_QUERY = re.compile(r'query\s+(?:\(printf\s+)?"((?:[^"\\]|\\.)*)"')


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that is wrong with a rule."""

    place: str
    """File, line and column."""
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.message}"


def lint(
    rules: Sequence[PrometheusRule],
    *,
    others: Sequence[PrometheusRule] = (),
    policies: Mapping[str, Policy] | None = None,
) -> list[Finding]:
    """Return what is wrong with rules.

    Args:
        rules: to be checked.
        others: rules that are evaluated beside them.
        policies: name of a policy → what it says; each has to answer the alerts that may act.
    """
    known = {rule.name for rule in (*rules, *others) if not rule.is_alert}
    findings = [finding for rule in rules for finding in _of_rule(rule, known)]
    for name, policy in (policies or {}).items():
        findings += against_policy(name, policy, rules, others)
    return findings


def _of_rule(rule: PrometheusRule, recorded: Collection[str]) -> Iterator[Finding]:
    messages = list(_reads(rule.expr, recorded))
    if rule.is_alert:
        messages += _alert(rule)
        for text in rule.annotations.values():
            for query in _queries(text):
                messages += [f"in a query of its annotations, {one}" for one in _reads(query, recorded)]
    for message in dict.fromkeys(messages):
        yield Finding(str(rule.place), rule.title, message)


def _reads(expr: str, recorded: Collection[str]) -> Iterator[str]:
    """Say what an expression reads that does not exist."""
    try:
        found = selectors(expr)
    except PromqlError as error:
        yield str(error)
        return
    for selector in found:
        yield from _selected(selector, recorded)


def _selected(selector: Selector, recorded: Collection[str]) -> Iterator[str]:
    name = selector.name
    if name is None or name in recorded or series.is_foreign(name) or name in series.of_the_controller():
        return
    metric = series.exported().get(name)
    if metric is None:
        near = difflib.get_close_matches(name, [*series.exported(), *recorded], n=1)
        hint = f"did you mean {near[0]}?" if near else "'trainswitch metrics' lists what is exported."
        yield f"{name} is neither exported nor recorded: {hint}"
        return
    labels = dict(metric.labels)
    for matcher in selector.matchers:
        if matcher.label not in labels and matcher.label not in _TARGET_LABELS:
            known = ", ".join(labels) or "none besides run and rank"
            yield f"{name} has no label {matcher.label}; its labels are {known}."
            continue
        values: Iterable[str] = labels.get(matcher.label, ())
        if matcher.label == "le" and metric.kind == "histogram":
            values = [*(str(bound) for bound in metric.buckets), "+Inf"]
        values = list(values)
        if values and not any(matcher.allows(value) for value in values):
            yield (
                f"{name}{{{matcher.label}{matcher.operator}{matcher.value!r}}} selects nothing: "
                f"the values are {', '.join(values)}."
            )


def _alert(rule: PrometheusRule) -> Iterator[str]:
    severity = rule.labels.get("severity")
    if severity not in SEVERITIES:
        yield f"severity {severity!r} is not one of {', '.join(SEVERITIES)}."
    for key in ("summary", "description", "runbook_url"):
        if not rule.annotations.get(key, "").strip():
            yield f"the annotation {key!r} is missing."
    if "{{" in rule.annotations.get("summary", ""):
        yield "its summary is a template: keep it constant, and put values into the description."
    runbook = rule.annotations.get("runbook_url", "")
    if runbook and "://" not in runbook and not _exists(runbook, rule.place.path):
        yield f"its runbook {runbook} does not exist."
    action = rule.labels.get("action")
    if action is None:
        return
    if action not in ACTIONS:
        near = difflib.get_close_matches(action, ACTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(ACTIONS)}."
        yield f"action {action} does not exist: {hint}"
    if severity != "critical":
        yield f"it names the action {action}, and only critical alerts act: remove one or the other."


def _exists(runbook: str, rule_file: Path) -> bool:
    """Return whether a runbook lies beside the folder of its rules, or one folder further up."""
    folders = rule_file.absolute().parents
    return any((folder / runbook).is_file() for folder in folders[:3])


def _queries(template: str) -> Iterator[str]:
    """Yield the queries in a template, with a text in place of each of their verbs."""
    for text in _QUERY.findall(template):
        query = text.replace('\\"', '"').replace("%q", '"x"')
        yield re.sub(r"%\.?\d*[fgs]", "1", query)


def against_policy(
    title: str, policy: Policy, rules: Sequence[PrometheusRule], others: Sequence[PrometheusRule]
) -> Iterator[Finding]:
    """Say where `policy` and the alerts with an action do not fit; `others` need not be answered."""
    acting = {rule.name: rule for rule in rules if rule.is_alert and "action" in rule.labels}
    for name, rule in acting.items():
        if name not in policy.alerts:
            yield Finding(
                str(rule.place), rule.title, f"it names an action, and {title} has no entry for it."
            )
    known = acting.keys() | {rule.name for rule in others if rule.is_alert and "action" in rule.labels}
    for name in policy.alerts:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "remove it."
            yield Finding(title, name, f"it answers an alert that no rule lets act: {hint}")
