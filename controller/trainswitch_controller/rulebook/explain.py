"""What an alert watches, at which limits, and what follows from it, in words and in full."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import promql_parser
from promql_parser import BinaryExpr, Expr, NumberLiteral, ParenExpr, UnaryExpr

from trainswitch_controller.policy import AlertRule, Policy
from trainswitch_controller.promql import metric_names, parse
from trainswitch_controller.rulebook import series
from trainswitch_controller.rulebook.rule_files import PrometheusRule

_COMPARISONS = {">": "above", ">=": "at least", "<": "below", "<=": "at most", "==": "equal to", "!=": "not"}
_SECTION = re.compile(r"^## Meaning\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Everything about one alert of one severity."""

    rule: PrometheusRule
    limits: tuple[str, ...]
    """Each comparison with a number, in words."""
    records: tuple[PrometheusRule, ...]
    """Recording rules that it rests on, in the order in which they are met."""
    metrics: dict[str, str]
    """Exported metric → what it is."""
    ladder: tuple[str, ...]
    """What the policy does, rung by rung; empty where it does nothing."""
    meaning: str | None
    """From its runbook."""
    thresholds: str | None
    """What the head of its rule file says about thresholds."""

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        rule = self.rule
        return {
            "alert": rule.name,
            "place": str(rule.place),
            "group": rule.group,
            "interval": rule.interval,
            "for": rule.wait,
            "keep_firing_for": rule.keep,
            "labels": rule.labels,
            "annotations": rule.annotations,
            "expr": rule.expr.strip(),
            "limits": list(self.limits),
            "records": [
                {"record": one.name, "labels": one.labels, "expr": one.expr.strip(), "place": str(one.place)}
                for one in self.records
            ],
            "metrics": self.metrics,
            "ladder": list(self.ladder),
            "meaning": self.meaning,
            "thresholds": self.thresholds,
        }


def explain(
    name: str,
    rules: Sequence[PrometheusRule],
    policy: Policy | None = None,
) -> list[Explanation]:
    """Return what there is to say about an alert, one for each severity; none where no rule has that name.

    Args:
        name: of the alert.
        rules: of all files.
        policy: what answers alerts.

    Raises:
        PromqlError: an expression is no PromQL.
    """
    recorded: dict[str, list[PrometheusRule]] = {}
    for rule in rules:
        if not rule.is_alert:
            recorded.setdefault(rule.name, []).append(rule)
    return [_explained(rule, recorded, policy) for rule in rules if rule.is_alert and rule.name == name]


def _explained(
    rule: PrometheusRule,
    recorded: dict[str, list[PrometheusRule]],
    policy: Policy | None,
) -> Explanation:
    records: dict[str, list[PrometheusRule]] = {}
    metrics: dict[str, str] = {}
    left = [rule.expr]
    while left:
        for read in metric_names(left.pop(0)):
            if read in recorded and read not in records:
                records[read] = recorded[read]
                left += [one.expr for one in recorded[read]]
            elif read in series.exported():
                metrics[read] = series.exported()[read].help
    entry = policy.alerts.get(rule.name) if policy is not None and "action" in rule.labels else None
    return Explanation(
        rule=rule,
        limits=tuple(limits(rule.expr)),
        records=tuple(one for found in records.values() for one in found),
        metrics=metrics,
        ladder=_ladder(entry) if entry is not None else (),
        meaning=_meaning(rule),
        thresholds=_thresholds(rule.place.path),
    )


def limits(expr: str) -> list[str]:
    """Return each comparison with a number in an expression, in words.

    Raises:
        PromqlError: it is no PromQL.
    """
    found: list[str] = []

    def visit(node: Expr) -> None:
        if not isinstance(node, BinaryExpr):
            return
        words = _COMPARISONS.get(str(node.op))
        number = _number(node.rhs)
        if words is not None and number is not None:
            found.append(f"{_shown(node.lhs)} is {words} {number}")

    promql_parser.walk(parse(expr), visit)
    return list(dict.fromkeys(found))


def _number(node: Expr) -> str | None:
    if isinstance(node, ParenExpr):
        return _number(node.expr)
    if isinstance(node, UnaryExpr):
        inner = _number(node.expr)
        return None if inner is None else f"-{inner}"
    return f"{node.val:.10g}" if isinstance(node, NumberLiteral) else None


def _shown(node: Expr) -> str:
    text = " ".join(node.prettify().split())
    return text.replace("( ", "(").replace(" )", ")")


def _ladder(entry: AlertRule) -> tuple[str, ...]:
    rungs = []
    for rung in entry.ladder:
        params = ", ".join(f"{name}={value}" for name, value in rung.params.items())
        rungs.append(f"{rung.action}({params})" if params else rung.action)
    return tuple(rungs)


def _meaning(rule: PrometheusRule) -> str | None:
    link = rule.annotations.get("runbook_url", "")
    if not link or "://" in link:
        return None
    for folder in rule.place.path.absolute().parents[:3]:
        page = folder / link
        if page.is_file():
            section = _SECTION.search(page.read_text(encoding="utf-8"))
            return section.group(1).strip() if section else None
    return None


def _thresholds(path: Path) -> str | None:
    """Return the paragraph about thresholds in the comment at the head of a rule file."""
    head: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        head.append(line.removeprefix("#").removeprefix(" "))
    for number, line in enumerate(head):
        if line.startswith("Thresholds"):
            rest = head[number:]
            end = rest.index("") if "" in rest else len(rest)
            return "\n".join(rest[:end])
    return None
