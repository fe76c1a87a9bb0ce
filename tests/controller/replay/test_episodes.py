"""From the times at which alerts fired to episodes in rows."""

from __future__ import annotations

from tests.controller.replay.conftest import MakeRules, run_of

from trainswitch_controller.replay.alerting import FiringSpan
from trainswitch_controller.replay.episodes import Episodes
from trainswitch_controller.replay.timeline import TAIL_S, Timeline

TIMELINE = Timeline(1.0, 1.0)
GRID = TIMELINE.evaluations(1.0)
ALERT = """
  - name: a
    interval: 1s
    rules:
      - {alert: A, expr: x, labels: {severity: critical}}
"""


def episodes_of(make_rules: MakeRules, spans: list[FiringSpan]) -> tuple[list[tuple[int, int]], Episodes]:
    """Return the rows of the episodes of a run of 20 rows."""
    (rule,) = make_rules(ALERT)
    found = Episodes([run_of([1.0] * 20)], TIMELINE)
    found.add(rule, GRID, spans)
    return [(episode.start_row, episode.end_row) for episode in found.of("a")], found


def span(start: int, end: int, **labels: str) -> FiringSpan:
    """Return a time of firing; evaluation 5 is the first one that sees row 0."""
    return FiringSpan({"run": "a", "severity": "critical", **labels}, start, end, 1.0)


def test_alerts_that_differ_in_other_labels_are_one_episode_while_any_fires(make_rules: MakeRules) -> None:
    """Two ranks, or two without a pause between them, are one trouble of the run."""
    rows, _ = episodes_of(
        make_rules, [span(8, 10, rank="1"), span(7, 8, rank="0"), span(11, 12, rank="0"), span(14, 14)]
    )
    assert rows == [(2, 7), (9, 9)]


def test_what_fires_after_the_end_belongs_to_the_last_row_for_a_minute(make_rules: MakeRules) -> None:
    """Later it is looked at only because other runs of the replay are longer, which must change nothing."""
    minute_after = 5 + 20 + int(TAIL_S)
    rows, _ = episodes_of(make_rules, [span(30, 300), span(minute_after + 5, minute_after + 9)])
    assert rows == [(19, 19)]


def test_alerts_without_one_of_the_runs_are_named_and_are_no_episodes(make_rules: MakeRules) -> None:
    """Such as a Watchdog, which is about no run."""
    rows, found = episodes_of(make_rules, [FiringSpan({"severity": "critical"}, 5, 9, 1.0)])
    assert (rows, found.unjudged) == ([], ("A",))
