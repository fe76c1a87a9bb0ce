"""``trainswitch rules``: a rule file on its way to Prometheus and the controller, and rules explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.cli.support import Run

from trainswitch_controller.policy import load_policy

ROOT = Path(__file__).resolve().parents[2]
ISSUE = """{"rules": [
  {"metric": "gradient_norm", "condition": "max > 1e5持续3次",
   "action": "pause_and_snapshot", "severity": "critical"},
  {"metric": "val_accuracy", "condition": "下降>5%持续2epoch",
   "action": "reduce_lr", "params": {"factor": 0.5}}]}
"""


@pytest.fixture
def issue(tmp_path: Path) -> Path:
    """The rule file as it was asked for."""
    path = tmp_path / "mine.json"
    path.write_text(ISSUE, encoding="utf-8")
    return path


def test_compile_writes_what_check_and_test_accept(run: Run, issue: Path, tmp_path: Path) -> None:
    """Rules, cases, runbooks and a policy that belong together."""
    out = tmp_path / "out"
    done = run("rules", "compile", str(issue), "--output", str(out))
    assert done.code == 0, done.err
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "policy.yml",
        "rules/mine.yml",
        "runbooks/CustomGradNormHigh.md",
        "runbooks/CustomValAccuracyDropped.md",
        "tests/mine.test.yml",
    ]
    assert {"CustomGradNormHigh", "TrainNonFinite"} <= set(load_policy(out / "policy.yml")[0].alerts)
    checked = run("rules", "check", str(out / "rules"), "--policy", str(out / "policy.yml"))
    assert checked.code == 0, checked.out
    tested = run("rules", "test", str(out / "rules" / "mine.yml"))
    assert tested.code == 0, tested.out
    assert "4 cases, 0 of 1 failed" in tested.out


def test_compile_prints_rules_and_entries_without_an_output_folder(run: Run, issue: Path) -> None:
    """Two YAML documents: the rule file, and what belongs into the policy."""
    rules, entries = yaml.safe_load_all(run("rules", "compile", str(issue)).out)
    assert [rule["alert"] for rule in rules["groups"][0]["rules"]] == [
        "CustomGradNormHigh",
        "CustomValAccuracyDropped",
    ]
    assert entries["alerts"]["CustomGradNormHigh"] == {"ladder": [{"action": "pause_and_snapshot"}]}
    document = json.loads(run("rules", "compile", str(issue), "--json").out)
    assert document["policy_entries"] == entries["alerts"]
    assert document["alerts"][1]["condition"] == "val_accuracy drops > 5% for 2 epochs"


def test_faults_end_with_1_and_name_line_and_column(run: Run, issue: Path) -> None:
    """Compiling and checking agree on them; checking tells programs as well."""
    issue.write_text(
        ISSUE.replace("gradient_norm", "gradient_nrom").replace("持续2", "持绪2"), encoding="utf-8"
    )
    done = run("rules", "compile", str(issue))
    assert done.code == 1
    assert f"{issue}:2:14: metric 'gradient_nrom' is exported by nobody: did you mean" in done.err
    assert f"{issue}:4:49: '持绪' is not understood here: did you mean '持续'?" in done.err
    checked = run("rules", "check", str(issue), "--json")
    assert checked.code == 1
    places = [finding["place"] for finding in json.loads(checked.out)["findings"]]
    assert places == [f"{issue}:2:14", f"{issue}:4:49"]


def test_a_users_rules_are_tested_by_generated_cases(run: Run, issue: Path) -> None:
    """One line for each alert."""
    done = run("rules", "test", str(issue), "--json")
    assert done.code == 0, done.err
    results = json.loads(done.out)["results"]
    assert [(one["name"].partition(":")[0], one["cases"], one["holds"]) for one in results] == [
        ("CustomGradNormHigh", 2, True),
        ("CustomValAccuracyDropped", 2, True),
    ]


def test_a_case_that_fails_is_shown_and_ends_with_1(run: Run, tmp_path: Path) -> None:
    """With what promtool says about it."""
    (tmp_path / "a.yml").write_text(
        "groups: [{name: g, rules: [{record: a, expr: vector(1)}]}]", encoding="utf-8"
    )
    cases = tmp_path / "a.test.yml"
    cases.write_text(
        "rule_files: [a.yml]\ntests:\n  - promql_expr_test:\n"
        "      - {expr: a, eval_time: 1m, exp_samples: [{labels: a, value: 2}]}\n",
        encoding="utf-8",
    )
    done = run("rules", "test", str(cases))
    assert done.code == 1
    assert "FAILED" in done.out
    assert "got:" in done.out


def test_the_committed_rules_have_nothing_to_complain_about(run: Run) -> None:
    """promtool, our own findings, both policies and every route."""
    policies = [
        part for path in sorted((ROOT / "policies").glob("*.yml")) for part in ("--policy", str(path))
    ]
    done = run("rules", "check", *policies, "--alertmanager", str(ROOT / "alertmanager" / "alertmanager.yml"))
    assert done.code == 0, done.out


def test_an_alert_that_no_route_brings_to_the_controller_is_found(
    run: Run, issue: Path, tmp_path: Path
) -> None:
    """An action that nobody hears of."""
    assert run("rules", "compile", str(issue), "--output", str(tmp_path)).code == 0
    routes = tmp_path / "alertmanager.yml"
    routes.write_text("route: {receiver: people}\nreceivers: [{name: people}]\n", encoding="utf-8")
    done = run("rules", "check", str(tmp_path / "rules"), "--alertmanager", str(routes))
    assert done.code == 1
    assert done.out.count("its alerts go to people and not to the controller") == 2


def test_a_committed_alert_is_explained(run: Run) -> None:
    """Meaning, limits, ladder, expression, and the metrics it rests on."""
    done = run("rules", "explain", "TrainNonFinite")
    assert done.code == 0, done.err
    for part in ("MEANING", "WHAT IS DONE", "EXPRESSION", "THRESHOLDS OF ITS FILE", "train_nonfinite_total:"):
        assert part in done.out
    (document, *_) = json.loads(run("rules", "explain", "TrainNonFinite", "--json").out)["explanations"]
    assert document["labels"]["severity"] == "critical"
    assert document["ladder"] == ["pause"]


def test_a_compiled_alert_is_explained_from_its_rule_file(run: Run, issue: Path) -> None:
    """With the place in the user's file, and the ladder that it would get."""
    done = run("rules", "explain", "CustomValAccuracyDropped", "--rules", str(issue))
    assert done.code == 0, done.err
    assert f"{issue}:4:3" in done.out
    assert "下降>5%持续2epoch" in done.out
    assert "reduce_lr(factor=0.5)" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain", "TrainNonFinit"), "did you mean TrainNonFinite?"),
        (("compile", "nowhere.json"), "nowhere.json is no file"),
        (("check", "nowhere.yml"), "nowhere.yml does not exist"),
        (("test", "nowhere.yml"), "nowhere.yml does not exist"),
        (("check", "--policy", "nowhere.yml"), "nowhere.yml is no file"),
    ],
)
def test_an_argument_that_cannot_be_meant_ends_with_2(
    run: Run, arguments: tuple[str, ...], said: str
) -> None:
    """In one sentence."""
    done = run("rules", *arguments)
    assert done.code == 2
    assert said in done.err
