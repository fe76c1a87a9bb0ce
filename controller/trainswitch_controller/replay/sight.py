"""Which rules can have a result at all, given the series that there are: the others are blind in a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from promql_parser import (
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    MatrixSelector,
    ParenExpr,
    SubqueryExpr,
    UnaryExpr,
    VectorSelector,
)

from trainswitch.config import MonitorConfig
from trainswitch.metrics.catalogue import CATALOGUE
from trainswitch_controller.promql import Selector, parse, selectors
from trainswitch_controller.replay.order import may_select, written_by
from trainswitch_controller.replay.rule_files import Rule
from trainswitch_controller.replay.series import Labels

_FROM_NOTHING = frozenset({"absent", "absent_over_time", "scalar", "vector"})
"""Functions with a result where their argument has none."""
_LIMIT_LABELS = ["signal", "bound", "severity"]
"""What the metrics of limits are told apart by."""


class Known(NamedTuple):
    """Series of which some labels are known."""

    name: str
    labels: Mapping[str, str]
    complete: bool
    """Whether they have no other labels."""


def scraped_series(series: Iterable[Labels]) -> list[Known]:
    """Return what the scrapes brought."""
    return [Known(dict(labels)["__name__"], dict(labels), complete=True) for labels in series]


def possible_series(config: MonitorConfig) -> list[Known]:
    """Return what scrapes of any run can bring: what the aggregator measures, and the limits there are."""
    found = [Known("up", {}, complete=False)]
    for metric in CATALOGUE:
        if metric.collected:
            continue
        suffixes = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
        own = [name for name, _ in metric.labels]
        if own[: len(_LIMIT_LABELS)] == _LIMIT_LABELS:
            found += [
                Known(metric.name, dict(zip(_LIMIT_LABELS, limit.key, strict=True)), complete=False)
                for limit in config.limits
            ]
        else:
            found += [Known(metric.name + suffix, {}, complete=False) for suffix in suffixes]
    return found


def sighted(rules: Sequence[Rule], series: Iterable[Known]) -> list[Rule]:
    """Return the rules that can have a result, in their order.

    A rule that reads metrics of a GPU, say, has none in a replay, and neither has what reads only such rules.
    Nothing is lost by leaving them out.

    Args:
        rules: that may read each other.
        series: all that there can be besides what the rules write.
    """
    known: dict[str, list[Known]] = {}
    for one in series:
        known.setdefault(one.name, []).append(one)
    trees = {rule: parse(rule.expr) for rule in rules}
    found: set[Rule] = set()
    grown = True
    while grown:
        added = [
            rule
            for rule in rules
            if rule not in found and _may_result(trees[rule], lambda one: _selects(one, known))
        ]
        for rule in added:
            for name, labels in written_by(rule):
                known.setdefault(name, []).append(Known(name, labels, complete=False))
        found.update(added)
        grown = bool(added)
    return [rule for rule in rules if rule in found]


def _selects(selector: Selector, known: Mapping[str, list[Known]]) -> bool:
    return any(
        may_select(selector, one.labels, complete=one.complete)
        for name in selector.names_among(set(known))
        for one in known[name]
    )


def _may_result(node: Expr, selects: Callable[[Selector], bool]) -> bool:
    if isinstance(node, VectorSelector | MatrixSelector):
        return selects(selectors(node)[0])
    if isinstance(node, ParenExpr | UnaryExpr | SubqueryExpr | AggregateExpr):
        return _may_result(node.expr, selects)
    if isinstance(node, BinaryExpr):
        left = _may_result(node.lhs, selects)
        if str(node.op) == "unless":
            return left
        right = _may_result(node.rhs, selects)
        return left or right if str(node.op) == "or" else left and right
    if isinstance(node, Call) and node.func.name not in _FROM_NOTHING:
        return all(_may_result(argument, selects) for argument in node.args)
    return True
