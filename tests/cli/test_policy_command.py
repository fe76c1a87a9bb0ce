"""``trainswitch policy``: what is wrong with a policy, and what one would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.support import Run, StartTrainer

POLICIES = Path(__file__).parents[2] / "policies"


@pytest.mark.parametrize("name", ["conservative", "autonomous"])
def test_the_policies_that_are_shipped_give_no_warning(run: Run, name: str) -> None:
    """Every alert that asks for an action has an entry, and every entry an alert."""
    checked = run("policy", "check", str(POLICIES / f"{name}.yml"), "--strict", "--json")
    assert checked.code == 0, checked.err
    document = json.loads(checked.out)
    assert document["warnings"] == []
    assert "TrainNonFinite" in document["alerts"]


def test_warnings_name_what_cannot_be_meant(run: Run, tmp_path: Path) -> None:
    """An alert that no rule fires, one without entry, a wait without effect; --strict ends with 1."""
    policy = tmp_path / "policy.yml"
    policy.write_text(
        "version: 1\nalerts:\n  TrainNonFinit: {escalate_after: 5m, ladder: [{action: pause}]}\n"
        "  TrainLossUnstable: {ladder: [{action: stop}, {action: pause}]}\n"
    )
    checked = run("policy", "check", str(policy), "--json")
    assert checked.code == 0
    said = [warning["message"] for warning in json.loads(checked.out)["warnings"]]
    assert any("did you mean TrainNonFinite?" in one for one in said)
    assert any("escalate_after has no effect" in one for one in said)
    assert any("a rung follows 'stop'" in one for one in said)
    assert sum("has no entry for it" in one for one in said) >= 5
    assert run("policy", "check", str(policy), "--strict").code == 1


def test_own_rules_can_be_checked_against(run: Run, tmp_path: Path) -> None:
    """With --rules the alerts are those of the files that are named."""
    rules = tmp_path / "rules.yml"
    rules.write_text(
        "groups:\n- name: mine\n  rules:\n  - alert: Mine\n    expr: up == 0\n    labels: {action: pause}\n"
    )
    policy = tmp_path / "policy.yml"
    policy.write_text("version: 1\nalerts: {Mine: {ladder: [{action: pause}]}}\n")
    assert run("policy", "check", str(policy), "--rules", str(rules), "--strict").code == 0


def test_a_fault_is_the_controllers_own_sentence(run: Run, tmp_path: Path) -> None:
    """What a controller would refuse is refused alike, and ends with 2."""
    policy = tmp_path / "policy.yml"
    policy.write_text("version: 1\nalerts: {}\nescalate_after: soon\n")
    checked = run("policy", "check", str(policy))
    assert checked.code == 2
    assert "escalate_after = 'soon': write a duration" in checked.err
    assert "or write off" in checked.err


def test_a_policy_alone_explains_a_run_without_history(run: Run) -> None:
    """Named with --policy, nobody is asked: mode, rung, command, cooldown and budgets are the file's."""
    file = str(POLICIES / "autonomous.yml")
    explained = run("policy", "explain", "TrainNonFinite", "--policy", file, "--json")
    assert explained.code == 0, explained.err
    document = json.loads(explained.out)
    assert (document["source"], document["decision"]["action"]) == ("policy file", "rollback")
    assert document["decision"]["params"] == {"lr_factor": 0.5}
    assert (
        "TrainNonFinite, if it fired now for a run without history: it would act: rollback" in explained.err
    )
    near = run("policy", "explain", "TrainNonFinit", "--policy", file)
    assert "Did you mean TrainNonFinite?" in near.out


def test_without_a_controller_the_default_policy_is_explained(run: Run) -> None:
    """Who cannot be asked is named, and what is shown instead."""
    explained = run("policy", "explain", "TrainNonFinite", "--json")
    assert explained.code == 0
    assert json.loads(explained.out)["source"] == "policy file"
    assert "Shown instead is what" in explained.err


@pytest.mark.usefixtures("controller")
def test_a_controller_explains_by_its_journal(run: Run, trainer: StartTrainer, name: str) -> None:
    """With a controller its own policy and the run's history are judged by."""
    trainer(name)
    explained = run("policy", "explain", "TrainLossUnstable", "--run", name, "--json")
    assert explained.code == 0, explained.err
    document = json.loads(explained.out)
    assert (document["source"], document["run"]) == ("controller", name)
    assert document["decision"]["action"] == "reduce_lr"
    assert document["budgets"][0]["left"] == document["budgets"][0]["interventions"]
    assert run("policy", "explain", "TrainLossUnstable", "--run", "../x").code == 2
