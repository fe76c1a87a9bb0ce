"""Runs through a replay with a real Prometheus, from rows to episodes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.controller.replay.conftest import MakeRules, run_of

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay import ReplayResult, load_rules, replay

COMMITTED = Path(__file__).resolve().parents[3] / "prometheus" / "rules"
STEADY: list[float | None] = [2.0 + (number * 7 % 11) / 100 for number in range(200)]
RULES = """
  - name: a
    interval: 1s
    rules:
      - alert: High
        expr: max by (run) (high:loss) and on (run) up == 1
        labels: {severity: critical, action: pause}
      - {record: "high:loss", expr: "train_loss > 5"}
      - alert: Held
        expr: train_loss > 5
        for: 3s
        labels: {severity: warning}
      - {alert: Nameless, expr: "vector(1)"}
      - {alert: Blind, expr: "train_gpu_up == 0"}
      - alert: Slow
        expr: max by (run) (slow:loss)
        labels: {severity: warning}
  - name: b
    interval: 10s
    rules:
      - {record: "slow:loss", expr: "train_loss > 5"}
"""


def found(result: ReplayResult) -> set[tuple[str, str, str, int, int]]:
    """Return what matters of the episodes."""
    return {
        (episode.run, episode.alert, episode.severity, episode.start_row, episode.end_row)
        for episode in result.episodes
    }


def with_high(*rows: int) -> list[float | None]:
    """Return losses that are high at some rows."""
    return [9.0 if number in rows else loss for number, loss in enumerate(STEADY)]


def test_episodes_lie_at_the_rows_that_cause_them(prometheus: Path, make_rules: MakeRules) -> None:
    """An alert fires from the row on that it is about; `for` delays it; the records of a slow group hold."""
    result = replay(
        [run_of(with_high(50, 51, 120, 121, 122, 123, 124), "odd"), run_of(STEADY, "calm")],
        make_rules(RULES),
        prometheus=prometheus,
        jobs=1,
    )
    # A group of 10 s looks at rows 5, 15, … 115, 125: lead and phases are in timeline.py.
    assert found(result) == {
        ("odd", "High", "critical", 50, 51),
        ("odd", "High", "critical", 120, 124),
        ("odd", "Held", "warning", 123, 124),
    }
    (odd, calm) = result.runs
    assert not calm.episodes
    first = odd.episodes[0]
    assert (first.action, first.value) == ("pause", 9.0)
    assert 50.0 <= first.start < 51.0
    assert result.unjudged == ("Nameless",)


def test_the_records_of_a_slow_group_hold_until_its_next_evaluation(
    prometheus: Path, make_rules: MakeRules
) -> None:
    """As in a live Prometheus: what is found at one evaluation stands for the whole interval."""
    result = replay([run_of(with_high(105))], make_rules(RULES), prometheus=prometheus, jobs=1)
    slow = {one for one in found(result) if one[1] == "Slow"}
    assert slow == {("a", "Slow", "warning", 105, 114)}


def test_runs_are_judged_alike_alone_and_together_on_one_process_and_on_two(
    prometheus: Path, make_rules: MakeRules
) -> None:
    """What else is replayed, and on how many processes, changes nothing."""
    runs = [run_of(with_high(50), "a"), run_of(STEADY[:30], "b"), run_of(with_high(20, 199), "c")]
    rules = make_rules(RULES)
    together = found(replay(runs, rules, prometheus=prometheus, jobs=2))
    alone = [found(replay([run], rules, prometheus=prometheus, jobs=1)) for run in runs]
    assert together == set().union(*alone)
    assert ("c", "High", "critical", 199, 199) in together


def test_the_committed_rules_find_a_nan_and_leave_a_steady_run_alone(prometheus: Path) -> None:
    """Also at its end: a log that is over is no run that hangs or crashed."""
    losses = [*STEADY[:100], math.nan, *STEADY[:50]]
    result = replay(
        [run_of(losses, "nan"), run_of(STEADY, "steady")], load_rules([COMMITTED]), prometheus=prometheus
    )
    critical = {one[:4] for one in found(result) if one[2] == "critical"}
    assert critical == {("nan", "TrainNonFinite", "critical", 100)}


def test_traces_are_what_the_scrapes_saw(prometheus: Path, make_rules: MakeRules) -> None:
    """They are for plots, and named by metric and own labels."""
    names = ("train_loss_center", "train_loss_window{max}")
    result = replay([run_of(with_high(50))], make_rules(RULES), prometheus=prometheus, jobs=1, traces=names)
    center, largest = (result.runs[0].traces[name] for name in names)
    assert center.rows[-1] == 199
    assert 2.0 < center.values[-1] < 2.2
    assert largest.values[-1] == 9.0


def test_a_rule_that_prometheus_cannot_evaluate_is_named(prometheus: Path, make_rules: MakeRules) -> None:
    """A replay that left it out would call its runs healthy."""
    rules = make_rules(
        """
  - name: a
    rules:
      - {alert: Broken, expr: "train_run_state * on (run) train_run_state", labels: {severity: warning}}
"""
    )
    with pytest.raises(ReplayError, match=r"Broken \(warning\) in rules.yml: a cannot be evaluated.*many"):
        replay([run_of(STEADY)], rules, prometheus=prometheus, jobs=1)


def test_a_program_that_is_no_prometheus_is_named(tmp_path: Path, make_rules: MakeRules) -> None:
    """With what it said."""
    fake = tmp_path / "prometheus"
    fake.write_text("#!/bin/sh\necho I am no Prometheus\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(ReplayError, match="I am no Prometheus"):
        replay([run_of(STEADY)], make_rules(RULES), prometheus=fake, jobs=1)


def test_a_replay_of_years_is_refused(prometheus: Path, make_rules: MakeRules) -> None:
    """A pace that is a slip of the pen would fill the disk first."""
    with pytest.raises(ReplayError, match="days at a pace of 1e\\+06 s: choose a smaller --pace"):
        replay([run_of(STEADY)], make_rules(RULES), prometheus=prometheus, pace=1e6)
