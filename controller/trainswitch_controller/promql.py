"""What a PromQL expression asks for: its selectors and the functions that it uses.

Nothing is evaluated here; only Prometheus does that.
"""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta

import promql_parser
from promql_parser import (
    AggregateExpr,
    Call,
    Expr,
    MatchOp,
    MatrixSelector,
    SubqueryExpr,
    VectorSelector,
)

from trainswitch_controller.errors import PromqlError

_OPERATORS = ((MatchOp.Equal, "="), (MatchOp.NotEqual, "!="), (MatchOp.Re, "=~"), (MatchOp.NotRe, "!~"))
"""Pairs, because the parser's own constants cannot be keys."""
_NAME = "__name__"


@dataclasses.dataclass(frozen=True)
class Matcher:
    """One condition on a label."""

    label: str
    operator: str
    """``=``, ``!=``, ``=~`` or ``!~``."""
    value: str

    def allows(self, value: str) -> bool:
        """Return whether a series whose label has this value is selected; no label is an empty one."""
        if self.operator in {"=", "!="}:
            return (value == self.value) is (self.operator == "=")
        return (re.fullmatch(self.value, value, re.DOTALL) is not None) is (self.operator == "=~")


@dataclasses.dataclass(frozen=True)
class Selector:
    """One selection of series."""

    name: str | None
    """The metric's name; None where only a pattern or other labels select."""
    matchers: tuple[Matcher, ...] = ()
    """Conditions on labels; one on ``__name__`` is among them only where it is not the name itself."""
    range: float | None = None
    """Seconds of a range selector; None for an instant one."""
    offset: float = 0.0
    """Seconds that it looks back."""

    def names_among(self, known: frozenset[str] | set[str]) -> set[str]:
        """Return which of the `known` metric names it may select."""
        if self.name is not None:
            return {self.name} & known
        conditions = [matcher for matcher in self.matchers if matcher.label == _NAME]
        return {name for name in known if all(condition.allows(name) for condition in conditions)}


def parse(expression: str) -> Expr:
    """Return the syntax tree of a PromQL expression.

    Raises:
        PromqlError: it is none; the message holds the parser's own.
    """
    try:
        return promql_parser.parse(expression)
    except ValueError as error:
        shown = " ".join(expression.split())[:120]
        raise PromqlError(f"{shown!r} is not PromQL: {' '.join(str(error).split())}.") from None


def selectors(expression: str | Expr) -> tuple[Selector, ...]:
    """Return every selector of an expression, from left to right.

    Raises:
        PromqlError: `expression` is a text, and no PromQL.
    """
    found: list[Selector] = []
    ranges: list[timedelta] = []

    def visit(node: Expr) -> None:
        # The walk goes from a range selector straight to the instant one inside it.
        if isinstance(node, MatrixSelector):
            ranges.append(node.range)
        elif isinstance(node, VectorSelector):
            found.append(_selector(node, ranges.pop().total_seconds() if ranges else None))

    promql_parser.walk(_tree(expression), visit)
    return tuple(found)


def metric_names(expression: str | Expr) -> tuple[str, ...]:
    """Return the names of all metrics and recorded series in an expression, each once, in their order.

    Raises:
        PromqlError: `expression` is a text, and no PromQL.
    """
    return tuple(dict.fromkeys(one.name for one in selectors(expression) if one.name is not None))


def functions(expression: str | Expr) -> tuple[str, ...]:
    """Return the names of all functions and aggregations in an expression, each once, in their order.

    Raises:
        PromqlError: `expression` is a text, and no PromQL.
    """
    found: dict[str, None] = {}

    def visit(node: Expr) -> None:
        if isinstance(node, Call):
            found[node.func.name] = None
        elif isinstance(node, AggregateExpr):
            found[str(node.op)] = None

    promql_parser.walk(_tree(expression), visit)
    return tuple(found)


def reach(expression: str | Expr) -> float:
    """Return how many seconds back from its own time an expression reads at most, lookback not included.

    Ranges, offsets and subqueries around each other add up.

    Raises:
        PromqlError: `expression` is a text, and no PromQL.
    """
    furthest = 0.0
    around = [0.0]

    def enter(node: Expr) -> None:
        nonlocal furthest
        own = 0.0
        if isinstance(node, SubqueryExpr):
            own = _seconds(node.range) + _seconds(node.offset)
        elif isinstance(node, MatrixSelector):
            own = _seconds(node.range)
        elif isinstance(node, VectorSelector):
            own = _seconds(node.offset)
        around.append(around[-1] + own)
        furthest = max(furthest, around[-1])

    def leave(_node: Expr) -> None:
        around.pop()

    promql_parser.walk(_tree(expression), enter, leave)
    return furthest


def _tree(expression: str | Expr) -> Expr:
    return parse(expression) if isinstance(expression, str) else expression


def _selector(node: VectorSelector, window: float | None) -> Selector:
    matchers = tuple(
        Matcher(matcher.name, _operator(matcher.op), matcher.value) for matcher in node.matchers.matchers
    )
    name = node.name
    if name is None:
        exact = [one for one in matchers if one.label == _NAME and one.operator == "="]
        if exact:
            name = exact[0].value
            matchers = tuple(one for one in matchers if one is not exact[0])
    return Selector(name=name, matchers=matchers, range=window, offset=_seconds(node.offset))


def _operator(op: MatchOp) -> str:
    return next(text for constant, text in _OPERATORS if constant == op)


def _seconds(span: timedelta | None) -> float:
    return span.total_seconds() if span is not None else 0.0
