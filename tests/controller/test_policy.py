"""Policy files: what is accepted, and the sentence that refuses the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainswitch_controller.errors import PolicyError
from trainswitch_controller.explain import explain
from trainswitch_controller.policy import load_policy, parse_duration

POLICIES = Path(__file__).parents[2] / "policies"


def load(folder: Path, text: str) -> Any:
    """Load `text` as a policy."""
    path = folder / "policy.yml"
    path.write_text(text)
    return load_policy(path)[0]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("10m", 600.0), ("24h", 86400.0), ("7d", 604800.0), ("0.5s", 0.5), ("0s", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number with a unit."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", [90, "90", "1h30m", "-5s", "5 s", "5S", "", None, "1e3s", "٣s1"])
def test_what_is_no_duration_is_refused(text: object) -> None:
    """A number without a unit could mean anything, so it is refused with the way to write it."""
    with pytest.raises(ValueError, match="'90s', '10m', '24h'"):
        parse_duration(text)


@pytest.mark.parametrize("name", ["conservative", "autonomous"])
def test_the_policies_that_are_shipped_are_valid(name: str) -> None:
    """Both are valid, enforce, and act on something; tests/rules checks on which alerts."""
    policy, sha256 = load_policy(POLICIES / f"{name}.yml")
    assert policy.mode == "enforce"
    assert policy.alerts
    assert len(sha256) == 64


def test_the_default_policy_answers_as_the_documentation_says() -> None:
    """conservative.yml pauses, saves, or lowers the rate and then rolls back."""
    policy, _ = load_policy(POLICIES / "conservative.yml")
    ladders = {
        name: [(rung.action, rung.params) for rung in rule.ladder] for name, rule in policy.alerts.items()
    }
    expected: dict[str, list[tuple[str, dict[str, float]]]] = {
        "TrainNonFinite": [("pause", {})],
        "TrainGradientExplosion": [("pause_and_snapshot", {})],
        "TrainLossUnstable": [("reduce_lr", {"factor": 0.5}), ("rollback", {})],
        "TrainGpuMemoryLeak": [("snapshot", {})],
        "TrainHostMemoryLeak": [("snapshot", {})],
        "TrainReplicaMismatch": [("pause_and_snapshot", {})],
    }
    assert {name: ladders[name] for name in expected} == expected


def test_defaults(tmp_path: Path) -> None:
    """A policy needs no more than its version and its alerts."""
    policy = load(tmp_path, "version: 1\nalerts: {}")
    assert (policy.command_ttl, policy.max_alert_age, policy.cooldown, policy.ladder_reset) == (
        600,
        3600,
        60,
        86400,
    )
    assert (policy.budget.per_run.interventions, policy.budget.per_run.window) == (5, 86400)
    assert (policy.budget.global_.interventions, policy.budget.global_.window) == (20, 3600)


def test_defaults_of_an_action_are_spelled_out(tmp_path: Path) -> None:
    """The journal shows the factor that was asked for even where the policy left it out."""
    policy = load(tmp_path, "version: 1\nalerts: {A: {ladder: [{action: reduce_lr}]}}")
    assert policy.alerts["A"].ladder[0].params == {"factor": 0.5}


def test_what_a_training_script_registers_can_stand_in_a_ladder(tmp_path: Path) -> None:
    """Its parameters are the trainer's to judge, and pass as they are, None and lists too."""
    ladder = "[{action: drop_source, params: {name: web, share: 0.5, also: [a, null]}}, {action: pause}]"
    policy = load(tmp_path, f"version: 1\ncustom_actions: [drop_source]\nalerts: {{A: {{ladder: {ladder}}}}}")
    assert policy.alerts["A"].rung(1).params == {"name": "web", "share": 0.5, "also": ["a", None]}
    explained = explain(policy, "A", 1.0)
    assert explained.decision.action == "drop_source"
    assert [rung["action"] for rung in explained.ladder] == ["drop_source", "pause"]


def test_after_the_last_rung_comes_a_pause(tmp_path: Path) -> None:
    """Beyond the end of a ladder every rung is a pause."""
    rule = load(tmp_path, "version: 1\nalerts: {A: {ladder: [{action: reduce_lr}]}}").alerts["A"]
    assert [rule.rung(number).action for number in (1, 2, 3)] == ["reduce_lr", "pause", "pause"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 1\nalerts: {}\ncooldwn: 5s", "'cooldwn' is not a known key: did you mean 'cooldown'?"),
        (
            "version: 1\nalerts: {A: {ladder: [{actoin: pause}]}}",
            "alerts.A.ladder.0: 'actoin' is not a known key: did you mean 'action'?",
        ),
        ("version: 1\nalerts: {A: {ladder: [{action: pauze}]}}", "did you mean 'pause'?"),
        (
            "version: 1\ncustom_actions: [drop_source]\nalerts: {A: {ladder: [{action: drop_sorce}]}}",
            "alerts.A.ladder.0: action 'drop_sorce' does not exist: did you mean 'drop_source'? An action",
        ),
        (
            "version: 1\nalerts: {A: {ladder: [{action: zzz}]}}",
            "An action that the training script registers belongs in the policy's custom_actions.",
        ),
        ("version: 1\ncustom_actions: [pause]\nalerts: {}", "'pause' is a built-in one"),
        ("version: 1\ncustom_actions: [Drop]\nalerts: {}", "'Drop' is not allowed"),
        ("version: 1\ncustom_actions: [drop, drop]\nalerts: {}", "'drop' is listed twice"),
        (
            "version: 1\ncustom_actions: [drop]\nalerts: {A: {ladder: [{action: drop, params: {x: "
            + "x" * 10_000
            + "}}]}}",
            "more than 10000",
        ),
        ("version: 1\nalerts: {A: {ladder: [{action: reduce_lr, params: {factor: 3}}]}}", "'factor'"),
        ("version: 1\nalerts: {A: {ladder: []}}", "alerts.A.ladder"),
        ("version: 1\nalerts: {}\ncooldown: 60", "cooldown = 60: write a duration"),
        ("version: 1\nalerts: {}\ncommand_ttl: 0s", "command_ttl = "),
        ("version: 1\nalerts: {}\nmode: enforced", "mode = 'enforced'"),
        ("version: 1\nalerts: {}\nbudget: {global_: {}}", "did you mean 'global'?"),
        (
            "version: 1\nalerts: {}\nbudget: {per_run: {interventions: 0, window: 1h}}",
            "budget.per_run.interventions",
        ),
        ("version: 2\nalerts: {}", "version = 2"),
        ("version: 1", "'alerts' is missing"),
        ("version: 1\nalerts: {Watchdog: {ladder: [{action: pause}]}}", "Watchdog fires always"),
        (
            "version: 1\nalerts: {A: {ladder: [{action: reduce_lr, resume_when_resolved: true}]}}",
            "resume_when_resolved belongs to a rung that pauses",
        ),
        ("version: 1\nalerts: {}\nalerts: {}", "'alerts' is given twice"),
        ("version: 1\nalerts: {A: {ladder: [", "not valid YAML"),
        ("- version", "holds no mapping"),
        ("", "holds no mapping"),
        ("version: !!python/object/apply:os.getcwd []\nalerts: {}", "not valid YAML"),
        ("\x00", "not valid YAML"),
    ],
)
def test_a_policy_that_is_not_valid_is_refused(text: str, words: str, tmp_path: Path) -> None:
    """The sentence names the file, the key, the value, and the nearest key that exists."""
    with pytest.raises(PolicyError) as refused:
        load(tmp_path, text)
    assert words in str(refused.value)
    assert str(tmp_path / "policy.yml") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_policy_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file is named with what the operating system says."""
    with pytest.raises(PolicyError, match=r"none\.yml cannot be read: No such file"):
        load_policy(tmp_path / "none.yml")
