"""Prometheus rule files as the replay needs them: groups with their intervals, records and alerts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from promql_parser import Expr, SubqueryExpr, VectorSelector, parse_duration, walk

from trainswitch_controller.errors import PromqlError, ReplayRulesError
from trainswitch_controller.promql import Selector, parse, selectors

if TYPE_CHECKING:
    from trainswitch_controller.rulebook import PrometheusRule

_NOT_FOLLOWED = frozenset({"labels", "limit", "query_offset"})
DEFAULT_INTERVAL = 1.0
"""Seconds between evaluations of a group that names no interval, as in prometheus.yml."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """One recording or alerting rule."""

    name: str
    """Of the record or the alert."""
    is_alert: bool
    expr: str
    reads: tuple[Selector, ...]
    """What the expression selects."""
    interval: float
    """Seconds between two evaluations of its group."""
    looks_back: bool
    """Whether the expression reads other moments than that of its evaluation, for all that `reads` tells."""
    labels: dict[str, str]
    hold: float = 0.0
    """``for``, in seconds."""
    keep_firing: float = 0.0
    """``keep_firing_for``, in seconds."""
    source: str = ""
    """File and group, for messages."""

    @property
    def title(self) -> str:
        """What messages call it."""
        severity = self.labels.get("severity")
        return f"{self.name} ({severity})" if self.is_alert and severity else self.name

    def label(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the labels of a result as the rule makes them."""
        named = {"alertname": self.name} if self.is_alert else {"__name__": self.name}
        return {name: value for name, value in labels.items() if name != "__name__"} | self.labels | named


def load_rules(paths: Iterable[Path]) -> list[Rule]:
    """Read rule files; a folder stands for the files in it.

    Raises:
        RuleFileError: a file cannot be read, or is no rule file of Prometheus.
        ReplayRulesError: a rule cannot be followed in a replay, or there is no alert.
    """
    # Here and not above: processes that play runs read no rules, and the import takes its time.
    from trainswitch_controller.rulebook import expand, read_rule_file

    files = expand(paths)
    rules = [_rule(found) for path in files for found in read_rule_file(path)]
    if not any(rule.is_alert for rule in rules):
        raise ReplayRulesError(
            f"there is no alert in {', '.join(map(str, files))}: name a file that has one."
        )
    return rules


def seconds(text: str) -> float:
    """Return the seconds of a Prometheus duration such as ``1m30s``.

    Raises:
        ValueError: it is none.
    """
    if not text.strip("0msdhwy"):  # a zero of any unit, which the parser refuses
        return 0.0
    return parse_duration(text).total_seconds()


def _rule(found: PrometheusRule) -> Rule:
    for key in sorted(found.group_keys & _NOT_FOLLOWED):
        raise ReplayRulesError(
            f"{found.place}: {found.title} is in a group with {key!r}, which a replay does not follow: "
            "remove it for the replay."
        )
    for key, value in found.labels.items():
        if "{{" in value:
            raise ReplayRulesError(
                f"{found.place}: label {key!r} of {found.title} is a template, which a replay cannot work "
                "out: write the value itself."
            )
    try:
        tree = parse(found.expr)
        return Rule(
            name=found.name,
            is_alert=found.is_alert,
            expr=found.expr,
            reads=selectors(tree),
            looks_back=_looks_back(tree),
            interval=DEFAULT_INTERVAL if found.interval is None else seconds(found.interval),
            labels=found.labels,
            hold=seconds(found.wait or "0"),
            keep_firing=seconds(found.keep or "0"),
            source=f"{found.place.path.name}: {found.group}",
        )
    except (PromqlError, ValueError) as error:
        raise ReplayRulesError(f"{found.place}: {found.title}: {str(error).rstrip('.')}.") from None


def _looks_back(tree: Expr) -> bool:
    """Return whether there is a subquery or an ``@`` in an expression, which selectors do not tell."""
    found = False

    def visit(node: Expr) -> None:
        nonlocal found
        fixed = isinstance(node, VectorSelector) and node.at is not None
        found = found or fixed or isinstance(node, SubqueryExpr)

    walk(tree, visit)
    return found
