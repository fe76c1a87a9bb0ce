"""What a PromQL expression asks for."""

from __future__ import annotations

import pytest

from trainswitch_controller.errors import PromqlError
from trainswitch_controller.promql import Matcher, functions, metric_names, reach, selectors

EXPRESSION = (
    'sum by (run) (rate(a{x="1", y=~"2|3"}[5m] offset 30s)) > on (run) group_left () {__name__="b"} '
    "unless max_over_time((c > 3)[1m:1s] offset 1m) or histogram_quantile(0.5, d_bucket)"
)


def test_selectors_are_found_wherever_they_stand() -> None:
    """In calls, subqueries and on both sides of operators, with matchers, range and offset."""
    found = {one.name: one for one in selectors(EXPRESSION)}
    assert list(found) == ["a", "b", "c", "d_bucket"]
    assert found["a"].matchers == (Matcher("x", "=", "1"), Matcher("y", "=~", "2|3"))
    assert (found["a"].range, found["a"].offset) == (300.0, 30.0)
    assert (found["c"].range, found["c"].offset) == (None, 0.0)
    assert found["b"].matchers == ()


def test_names_and_functions_are_each_named_once_in_their_order() -> None:
    """A metric that is read twice is one metric."""
    assert metric_names(f"{EXPRESSION} or a") == ("a", "b", "c", "d_bucket")
    assert functions("max(max_over_time(a[1m])) + max(a)") == ("max", "max_over_time")


def test_an_expression_reaches_back_as_far_as_its_ranges_and_offsets_add_up() -> None:
    """Around each other they add; beside each other the furthest counts."""
    assert reach(EXPRESSION) == 330.0
    assert reach("max_over_time((rate(a[5m]))[1h:1m] offset 1d)") == 86400.0 + 3600.0 + 300.0
    assert reach("a") == 0.0


@pytest.mark.parametrize(
    ("operator", "allowed"), [("=", {"ab"}), ("!=", {"", "a"}), ("=~", {"ab"}), ("!~", {"", "a"})]
)
def test_a_matcher_allows_what_prometheus_would(operator: str, allowed: set[str]) -> None:
    """Patterns hold for the whole value."""
    matcher = Matcher("x", operator, "ab" if operator in ("=", "!=") else "ab|c")
    assert {value for value in ("", "a", "ab") if matcher.allows(value)} == allowed


def test_a_pattern_selects_among_the_known_names() -> None:
    """Where a selector has no name of its own."""
    (selector,) = selectors('{__name__=~"train_l.*", run="a"}')
    assert selector.names_among({"train_loss", "train_step"}) == {"train_loss"}
    (selector,) = selectors("train_step")
    assert selector.names_among({"train_loss", "train_step"}) == {"train_step"}


@pytest.mark.parametrize("text", ["sum by (run", "nothing_of_that_name(a)", ""])
def test_what_is_no_promql_is_refused_in_one_sentence(text: str) -> None:
    """With the parser's reason."""
    with pytest.raises(PromqlError, match=r"is not PromQL: .+\.$"):
        selectors(text)
