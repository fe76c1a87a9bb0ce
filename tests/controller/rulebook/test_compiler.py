"""What is compiled: valid rules that fire exactly where the condition holds, at any pace."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from tests.controller.rulebook.conftest import MakeRule
from tests.exporter.metrics.test_aggregator import build, step

from trainswitch_controller.promql import functions, metric_names
from trainswitch_controller.rulebook import (
    CompiledRule,
    case_documents,
    compile_file,
    lint,
    policy_entries,
    read_rule_file,
    rule_document,
)
from trainswitch_controller.rulebook.promtool import check_rules, run_cases
from trainswitch_controller.rulebook.quantities import QUANTITIES
from trainswitch_controller.rulebook.runbook_page import runbook_page
from trainswitch_controller.rulebook.text import yaml_text


def write(folder: Path, one: CompiledRule) -> Path:
    """Write a compiled rule and its runbook as `rules compile --output` does."""
    (folder / "rules").mkdir()
    (folder / "runbooks").mkdir()
    path = folder / "rules" / "custom.yml"
    path.write_text(yaml_text(rule_document([one], "custom")), encoding="utf-8")
    (folder / "runbooks" / f"{one.rule.name}.md").write_text(runbook_page(one), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("metric", "condition"),
    [
        ("gradient_norm", "max > 1e5持续3次"),
        ("val_accuracy", "下降>5%持续2epoch"),
        ("loss", "is nan"),
        ("grad_norm", "is nan for 3 times"),
        ("val_loss", "is nan"),
        ("loss", "> 6 sigma for 5 steps"),
        ("loss", "> 3x median and grad_norm > 3x median for 3 steps"),
        ("loss", "> 100 for 1000 steps"),
        ("loss", "> 5 for 2 epochs"),
        ("loss", "< 5 for 2 minutes"),
        ("loss", "> 2x baseline"),
        ("loss", "rises > 50%"),
        ("loss", "median > 10 for 5 steps"),
        ("loss", "min > 10"),
        ("grad_norm", "< 1e-6 for 100 steps"),
        ("grad_norm", "mean > 5"),
        ("gpu_memory", "> 90% for 1 minute"),
        ("gpu_memory", "> 70GB for 100 steps"),
        ("gpu_temperature", "超过85度"),
        ("host_memory", ">= 95%"),
        ("throughput", "drops > 20% for 2 minutes"),
        ("tokens_per_second", "< 80% of mean"),
        ("step_time", "> 2s"),
        ("data_wait_share", "> 50%"),
        ("learning_rate", "is 0 for 100 steps"),
        ("learning_rate", "rises > 50% within 2 minutes"),
        ("gpu_memory", "rises > 10% within 2 minutes"),
        ("checkpoint_age", "> 2h"),
        ("train_skipped_steps_total", "rises > 10 within 5 minutes"),
        ("val_loss", "rises > 10% for 3 evaluations"),
        ("val_loss", "> 1.5x mean"),
        ("eval:bleu", "drops >= 2"),
    ],
)
def test_a_rule_is_valid_and_its_alert_fires_exactly_where_the_condition_holds(
    promtool: Path, tmp_path: Path, rule: MakeRule, metric: str, condition: str
) -> None:
    """It fires just beyond the limit, and is silent just below it and before its time, says promtool."""
    one = rule(metric, condition)
    path = write(tmp_path, one)
    assert check_rules(promtool, path) == []
    assert lint(read_rule_file(path)) == []
    documents, without = case_documents([one], "../rules/custom.yml")
    assert without == []
    for ending, document in documents.items():
        cases = tmp_path / "rules" / f"custom.{ending}"
        cases.write_text(yaml_text(document), encoding="utf-8")
        assert run_cases(promtool, cases).failures == ()


def test_a_generated_case_fails_where_the_rule_is_wrong(
    promtool: Path, tmp_path: Path, rule: MakeRule
) -> None:
    """A case that cannot fail would be no case: with another limit in the rule, both kinds do."""
    one = rule("grad_norm", "> 1e5 for 3 steps")
    documents, _ = case_documents([one], "custom.yml")
    for limit, kind in (("200000", "exp:"), ("50000", "got:")):
        text = yaml_text(rule_document([one], "custom")).replace("> 100000\n", f"> {limit}\n")
        assert limit in text
        (tmp_path / "custom.yml").write_text(text, encoding="utf-8")
        cases = tmp_path / "custom.test.yml"
        cases.write_text(yaml_text(documents["test.yml"]), encoding="utf-8")
        (failure,) = run_cases(promtool, cases).failures
        assert kind in failure


def test_everything_with_a_name_can_be_watched(promtool: Path, tmp_path: Path) -> None:
    """Every short name stands for metrics that are exported, with labels that they have."""
    source = tmp_path / "all.yml"
    rules = "".join(f"  - {{metric: {one.name}, condition: '> 0.5'}}\n" for one in QUANTITIES)
    source.write_text(f"rules:\n{rules}", encoding="utf-8")
    path = tmp_path / "custom.yml"
    path.write_text(yaml_text(rule_document(compile_file(source), "custom")), encoding="utf-8")
    assert check_rules(promtool, path) == []
    findings = [one.message for one in lint(read_rule_file(path))]
    assert [message for message in findings if "runbook" not in message] == []


@pytest.mark.parametrize("statistic", ["p50", "p95", "p99", "median", "mean"])
def test_a_percentile_is_that_of_the_histogram(rule: MakeRule, statistic: str) -> None:
    """No case can be fed to promtool for one, and the compiler says so."""
    one = rule("step_time", f"{statistic} > 2s")
    assert ("histogram_quantile" in functions(one.expr)) is (statistic != "mean")
    assert bool(case_documents([one], "x.yml")[1]) is (statistic != "mean")


def test_a_metric_of_the_catalogue_can_be_named_as_it_is(rule: MakeRule) -> None:
    """Whatever has no short name."""
    assert metric_names(rule("train_world_size", "< 8").expr) == ("train_world_size",)


@pytest.mark.parametrize(("pace", "steps"), [(0.005, 4000), (1.0, 60), (60.0, 10)])
@pytest.mark.parametrize(("run_of", "fires"), [(3, True), (2, False)])
def test_three_in_a_row_are_three_steps_at_any_pace(
    promtool: Path, tmp_path: Path, rule: MakeRule, pace: float, steps: int, run_of: int, fires: bool
) -> None:
    """Steps of 5 ms, of which a scrape sees one in 200, and of a minute, which are scraped sixty times each.

    The steps go through the real aggregator, and what it shows each second goes to promtool; two steps in a
    row and then two again are no three.
    """
    one = rule("gradient_norm", "max > 1e5持续3次")
    first = steps // 2
    bad = {*range(first, first + run_of), *range(first + run_of + 1, first + run_of + 3)}
    if fires:
        bad = set(range(first, first + run_of))
    ring, aggregator = build()
    shown: list[float] = []
    number = 0
    for second in range(int(steps * pace) + 1):
        while number < steps and number * pace <= second:
            norm = 2e5 if number in bad else 1.0
            step(ring, number, 1.0, norm, ended_at=1000.0 + number * pace)
            number += 1
        aggregator.drain()
        aggregator.take((), {"train_grad_norm_streak"})
        shown.append(aggregator.metrics.gauge("train_grad_norm_streak", "upper", "3").value)
    seen = math.ceil((first + run_of - 1) * pace) + 1  # the first scrape after the last of them
    values = " ".join("-Inf" if value == -math.inf else repr(value) for value in shown)
    alerts = f'count by (alertname) (ALERTS{{alertname="{one.rule.name}"}})'
    series = 'train_grad_norm_streak{run="r", rank="0", side="upper", steps="3"}'
    document = {
        "rule_files": ["custom.yml"],
        "evaluation_interval": "1s",
        "tests": [
            {
                "interval": "1s",
                "input_series": [{"series": series, "values": values}],
                "promql_expr_test": [
                    {
                        "expr": alerts,
                        "eval_time": f"{moment}s",
                        "exp_samples": [{"labels": f'{{alertname="{one.rule.name}"}}', "value": 1}]
                        if due
                        else [],
                    }
                    for moment, due in ((int(first * pace) - 1, False), (seen, fires))
                ],
            }
        ],
    }
    (tmp_path / "custom.yml").write_text(yaml_text(rule_document([one], "custom")), encoding="utf-8")
    cases = tmp_path / "custom.test.yml"
    cases.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert run_cases(promtool, cases).failures == ()


def test_a_critical_rule_acts_and_a_warning_tells(rule: MakeRule) -> None:
    """The label of the action, the entry of the policy, and how fast it is evaluated."""
    acting = rule("loss", "> 5", ", action: reduce_lr, params: {factor: 0.25}, cooldown: 10m")
    assert policy_entries([acting]) == {
        "CustomLossHigh": {
            "ladder": [{"action": "reduce_lr", "params": {"factor": 0.25}}],
            "cooldown": "10m",
        }
    }
    (group,) = rule_document([acting], "x")["groups"]
    assert group["interval"] == "1s"
    assert group["rules"][-1]["labels"] == {"severity": "critical", "action": "reduce_lr"}
    telling = rule("loss", "> 5")
    assert policy_entries([telling]) == {}
    (group,) = rule_document([telling], "x")["groups"]
    assert group["rules"][-1]["labels"] == {"severity": "warning"}


def test_a_rule_of_some_phases_is_silent_in_the_others(rule: MakeRule) -> None:
    """The phases of the run's configuration."""
    assert 'train_phase{phase=~"main|decay"}' in rule("loss", "> 5", ", phases: [main, decay]").expr


def test_a_description_with_braces_stays_text(promtool: Path, tmp_path: Path, rule: MakeRule) -> None:
    """Nobody writes a template by accident."""
    one = rule("loss", "> 5", ", description: 'see {{ wiki }}'")
    assert check_rules(promtool, write(tmp_path, one)) == []
    (group,) = rule_document([one], "x")["groups"]
    assert "{{ wiki" not in group["rules"][0]["annotations"]["description"]
