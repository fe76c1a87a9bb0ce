"""The order in which rules are worked out, and which of them are worked out at all."""

from __future__ import annotations

import pytest
from tests.controller.replay.conftest import MakeRules

from trainswitch.config import MonitorConfig
from trainswitch_controller.errors import ReplayRulesError
from trainswitch_controller.replay.demand import Demand
from trainswitch_controller.replay.order import dependencies
from trainswitch_controller.replay.rule_files import Rule
from trainswitch_controller.replay.series import sorted_labels
from trainswitch_controller.replay.sight import possible_series, scraped_series, sighted

RULES = """
  - name: a
    rules:
      - alert: Consequence
        expr: 'r:slow > 1 unless on (run) ALERTS{alertname=~"Cause|Other", alertstate="firing"}'
      - {alert: Cause, expr: 'r{window="5s"} > 2'}
      - {record: r, labels: {window: 5s}, expr: train_loss}
      - {record: r, labels: {window: 1m}, expr: train_epoch}
      - {record: r:slow, expr: 'max_over_time({__name__=~"r"}[1m])'}
      - {record: r:unread, expr: train_step}
"""


def named(rules: dict[Rule, set[Rule]]) -> dict[str, set[str]]:
    """Return the graph by names and windows."""
    return {key(rule): {key(other) for other in others} for rule, others in rules.items()}


def key(rule: Rule) -> str:
    """Return a rule's name and window."""
    return rule.name + rule.labels.get("window", "")


def test_a_rule_comes_after_those_that_it_may_read(make_rules: MakeRules) -> None:
    """Names, patterns of names, labels that rules set, and ALERTS by the alert's name are all told apart."""
    graph = named(dependencies(make_rules(RULES)))
    assert graph["Consequence"] == {"r:slow", "Cause"}
    assert graph["Cause"] == {"r5s"}
    assert graph["r:slow"] == {"r5s", "r1m"}


def test_records_that_no_alert_needs_are_left_out(make_rules: MakeRules) -> None:
    """They would cost a query for nothing."""
    assert "r:unread" not in named(dependencies(make_rules(RULES)))


def test_rules_in_a_circle_are_named(make_rules: MakeRules) -> None:
    """Such rules have no order; both stand in the message."""
    rules = make_rules(
        """
  - name: a
    rules:
      - {alert: A, expr: 'x unless on (run) ALERTS{alertname="B"}'}
      - {alert: B, expr: 'x unless on (run) ALERTS{alertname="A"}'}
"""
    )
    with pytest.raises(ReplayRulesError, match=r"circle.*A in rules.yml: a.*B in rules.yml: a"):
        dependencies(rules)


def test_demand_is_for_the_metrics_labels_and_buckets_that_are_selected(make_rules: MakeRules) -> None:
    """A histogram of which one bucket is read costs one series."""
    demand = Demand(
        make_rules(
            """
  - name: a
    rules:
      - alert: A
        expr: >-
          train_step_grad_norm_ratio_bucket{le="5.0"} > 1 or train_run_state{state!~"init|running"} > 0
"""
        )
    )
    assert demand.metrics == ("train_run_state", "train_step_grad_norm_ratio")
    assert demand.wants("train_step_grad_norm_ratio_bucket", {"run": "a", "le": "5.0"})
    assert not demand.wants("train_step_grad_norm_ratio_bucket", {"run": "a", "le": "10.0"})
    assert not demand.wants("train_step_grad_norm_ratio_count", {"run": "a"})
    assert demand.wants("train_run_state", {"state": "crashed"})
    assert not demand.wants("train_run_state", {"state": "running"})


@pytest.mark.parametrize(
    ("expression", "has_result"),
    [
        ("here > 1", True),
        ("gone > 1", False),
        ('here{run="b"}', False),
        ("here and gone", False),
        ("here or gone", True),
        ("here unless gone", True),
        ("gone unless here", False),
        ("sum by (run) (rate(gone[5m]))", False),
        ("absent(gone)", True),
        ("clamp_min(20 * gone, 60)", False),
        ("vector(1)", True),
        ("time() - max_over_time(here[5m:1s]) > 3", True),
        ("-(gone)", False),
        ('r{window="5s"}', True),
        ('r{window="1m"}', False),
        ("r:blind", False),
        ('ALERTS{alertname="Blind"}', False),
    ],
)
def test_blind_rules_are_told_from_those_that_can_see(
    make_rules: MakeRules, expression: str, has_result: bool
) -> None:
    """A rule is blind where no series can give it a result, through other rules as well."""
    rules = make_rules(
        f"""
  - name: a
    rules:
      - {{alert: Asked, expr: '{expression}'}}
      - {{record: r, labels: {{window: 5s}}, expr: here}}
      - {{record: r, labels: {{window: 1m}}, expr: gone}}
      - {{record: "r:blind", expr: 'r{{window="1m"}}'}}
      - {{alert: Blind, expr: "r:blind"}}
"""
    )
    seen = sighted(rules, scraped_series([sorted_labels({"__name__": "here", "run": "a"})]))
    assert ("Asked" in {rule.name for rule in seen}) is has_result


def test_limits_can_be_seen_only_where_the_configuration_has_them(make_rules: MakeRules) -> None:
    """What a rule reads besides its limit need not be worked out for it."""
    rules = make_rules(
        """
  - name: a
    rules:
      - {alert: OnLoss, expr: 'train_loss > on (run) train_limit{signal="loss", severity="critical"}'}
      - {alert: OnRatio, expr: 'train_loss_window > on (run) train_limit{signal="loss_ratio"}'}
      - {alert: OnCard, expr: "train_gpu_up == 0"}
      - {alert: OnSteps, expr: "rate(train_step_seconds_sum[1m]) > 0"}
"""
    )
    config = MonitorConfig.model_validate({"limits": [{"signal": "loss", "value": 5.0}]})
    assert [rule.name for rule in sighted(rules, possible_series(config))] == ["OnLoss", "OnSteps"]
