"""Rule files as the replay reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.controller.replay.conftest import MakeRules

from trainswitch_controller.errors import ControllerError
from trainswitch_controller.replay import load_rules
from trainswitch_controller.replay.rule_files import DEFAULT_INTERVAL, seconds

COMMITTED = Path(__file__).resolve().parents[3] / "prometheus" / "rules"


def test_a_rule_has_what_prometheus_reads_of_it(make_rules: MakeRules) -> None:
    """Interval, labels, `for` and `keep_firing_for` come from the file, and defaults where it has none."""
    record, alert = make_rules(
        """
  - name: a
    interval: 1m30s
    rules:
      - {record: "x:y", expr: "y > 1"}
  - name: b
    rules:
      - alert: A
        expr: x:y
        for: 5s
        keep_firing_for: 1m
        labels: {severity: critical, tier: 1}
"""
    )
    assert (record.name, record.is_alert, record.interval, record.hold) == ("x:y", False, 90.0, 0.0)
    assert (alert.interval, alert.hold, alert.keep_firing) == (DEFAULT_INTERVAL, 5.0, 60.0)
    assert alert.label({"__name__": "x", "run": "a"}) == {
        "run": "a",
        "severity": "critical",
        "tier": "1",
        "alertname": "A",
    }


def test_all_committed_rules_can_be_read() -> None:
    """A folder stands for its files, and no committed rule is beyond the replay."""
    names = {rule.name for rule in load_rules([COMMITTED])}
    assert {"TrainNonFinite", "TrainLossUnstable", "run:train_steps:count"} <= names


@pytest.mark.parametrize(("text", "expected"), [("0", 0.0), ("0s", 0.0), ("250ms", 0.25), ("1h5m", 3900.0)])
def test_durations_are_prometheus_own(text: str, expected: float) -> None:
    """A zero is a duration, too."""
    assert seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("  - {name: a, rules: [{alert: A, expr: 'x >'}]}", "A: .*is not PromQL"),
        ("  - {name: a, rules: [{alert: A}]}", "a rule needs 'expr'"),
        ("  - {name: a, interval: soon, rules: [{alert: A, expr: x}]}", "A: .*soon"),
        ("  - {name: a, rules: [{record: r, expr: x}]}", "no alert"),
        ("  - {name: a, rules: [{alert: A, expr: x, labels: {tier: '{{ $value }}'}}]}", "label 'tier' of A"),
        ("  - {name: a, limit: 3, rules: [{alert: A, expr: x}]}", "A is in a group with 'limit'"),
        ("  - {name: a, query_offset: 1m, rules: [{alert: A, expr: x}]}", "'query_offset'"),
        ("  {}", "no list 'groups'"),
        ("  - {", "not valid YAML"),
    ],
)
def test_what_cannot_be_followed_is_refused(make_rules: MakeRules, text: str, said: str) -> None:
    """The sentence names the file, the rule, and what is wrong with it."""
    with pytest.raises(ControllerError, match=f"rules.yml.*{said}|{said}.*rules.yml"):
        make_rules(text)


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    """Neither is taken for a file without rules."""
    with pytest.raises(ControllerError, match="nowhere"):
        load_rules([tmp_path / "nowhere.yml"])
    with pytest.raises(ControllerError, match="holds no"):
        load_rules([tmp_path])
