"""What is found in rule files: rules that can never fire, and alerts that nobody could act on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainswitch_controller.policy import load_policy
from trainswitch_controller.rulebook import lint, read_rule_file
from trainswitch_controller.rulebook.explain import explain, limits
from trainswitch_controller.rulebook.promtool import check_rules

RUNBOOK = "https://example.org/runbook"


def rule_file(folder: Path, expr: str = "max by (run) (train_loss) > 5", **changes: Any) -> Path:
    """Write a rule file with one alert that is right, but for `changes`."""
    alert: dict[str, Any] = {
        "alert": "Mine",
        "expr": expr,
        "labels": {"severity": "warning"},
        "annotations": {"summary": "It is.", "description": "So.", "runbook_url": RUNBOOK},
        **changes,
    }
    path = folder / "mine.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [alert]}]}), encoding="utf-8")
    return path


def messages(path: Path) -> list[str]:
    """Return what is found."""
    return [finding.message for finding in lint(read_rule_file(path))]


def test_a_rule_that_is_right_has_no_findings(tmp_path: Path) -> None:
    """Neither ours nor promtool's."""
    assert messages(rule_file(tmp_path)) == []


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("train_los > 5", "train_los is neither exported nor recorded: did you mean train_loss?"),
        ("run:nothing:here > 5", "run:nothing:here is neither exported nor recorded"),
        ('train_run_state{state="runing"} == 1', "selects nothing: the values are init, running"),
        ('train_loss{layer="0"} > 5', "train_loss has no label layer"),
        ('train_step_grad_norm_ratio_bucket{le="4.0"} > 5', "selects nothing: the values are 0.01"),
        ("train_step_loss_deviation_sigmas_sum > 1", "neither exported nor recorded"),
    ],
)
def test_a_rule_that_can_never_fire_is_found(tmp_path: Path, expr: str, said: str) -> None:
    """A metric, a label or a value that does not exist: Prometheus itself would say nothing."""
    (message,) = messages(rule_file(tmp_path, expr))
    assert said in message


@pytest.mark.parametrize(
    "expr",
    [
        'up{job="trainswitch"} == 0',
        'trainswitch_controller_alerts_total{outcome="budget"} > 0',
        'train_step_grad_norm_ratio_bucket{le="10.0"} > 5',
        'train_run_state{state=~"running|hung"} == 1',
        'ALERTS{alertname="Mine"} == 1',
        "prometheus_notifications_dropped_total > 0",
    ],
)
def test_what_exists_is_no_finding(tmp_path: Path, expr: str) -> None:
    """The trainer's metrics, the controller's, and Prometheus' own."""
    assert messages(rule_file(tmp_path, expr)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": {}}, "severity None is not one of"),
        ({"labels": {"severity": "critical", "action": "puase"}}, "did you mean pause?"),
        ({"labels": {"severity": "warning", "action": "pause"}}, "only critical alerts act"),
        (
            {"annotations": {"summary": "A {{ $value }}.", "description": "So.", "runbook_url": RUNBOOK}},
            "keep it constant",
        ),
        ({"annotations": {"summary": "A.", "runbook_url": RUNBOOK}}, "'description' is missing"),
        (
            {"annotations": {"summary": "A.", "description": "So.", "runbook_url": "runbooks/Mine.md"}},
            "runbooks/Mine.md does not exist",
        ),
        (
            {
                "annotations": {
                    "summary": "A.",
                    "description": '{{ range query (printf "train_los{run=%q}" $labels.run) }}{{ end }}',
                    "runbook_url": RUNBOOK,
                }
            },
            "in a query of its annotations, train_los is neither",
        ),
    ],
)
def test_an_alert_that_nobody_could_act_on_is_found(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """Its labels, its annotations and the queries in them."""
    (message,) = messages(rule_file(tmp_path, **changes))
    assert said in message


def test_alerts_and_policy_have_to_name_each_other(tmp_path: Path) -> None:
    """An entry without an alert has no effect; an alert without an entry only looks as if it acted."""
    policy = tmp_path / "policy.yml"
    policy.write_text("version: 1\nalerts: {Mien: {ladder: [{action: pause}]}}\n", encoding="utf-8")
    rules = read_rule_file(rule_file(tmp_path, labels={"severity": "critical", "action": "pause"}))
    found = lint(rules, policies={"policy.yml": load_policy(policy)[0]})
    assert [finding.message for finding in found] == [
        "it names an action, and policy.yml has no entry for it.",
        "it answers an alert that no rule lets act: did you mean Mine?",
    ]


def test_promtool_has_its_say(promtool: Path, tmp_path: Path) -> None:
    """What it refuses is passed on."""
    assert check_rules(promtool, rule_file(tmp_path)) == []
    (said, *_) = check_rules(promtool, rule_file(tmp_path, "sum by (run"))
    assert "parse" in said


def test_an_explanation_follows_recorded_series_to_the_exported_ones(tmp_path: Path) -> None:
    """Every record on the way, the metrics at its end, and the limits as sentences."""
    path = tmp_path / "mine.yml"
    rules = [
        {"record": "run:a:max", "expr": "max by (run) (run:b:max)"},
        {"record": "run:b:max", "expr": "max by (run) (train_loss)"},
        {"record": "run:unused:max", "expr": "train_step"},
        {"alert": "Mine", "expr": "run:a:max > 5 and run:a:max < 1e3", "labels": {"severity": "warning"}},
    ]
    text = yaml.safe_dump({"groups": [{"name": "g", "interval": "1s", "rules": rules}]})
    path.write_text(
        f"# Thresholds, and when to change them:\n#   5  so\n#\n# More.\n{text}", encoding="utf-8"
    )
    (one,) = explain("Mine", read_rule_file(path))
    assert [record.name for record in one.records] == ["run:a:max", "run:b:max"]
    assert list(one.metrics) == ["train_loss"]
    assert one.limits == ("run:a:max is above 5", "run:a:max is below 1000")
    assert one.thresholds == "Thresholds, and when to change them:\n  5  so"
    assert explain("Other", read_rule_file(path)) == []


def test_limits_are_found_with_their_sign_and_through_parentheses() -> None:
    """A negative number is a unary minus to the parser."""
    assert limits("(a > (-0.5)) or b == 0") == ["a is above -0.5", "b is equal to 0"]
