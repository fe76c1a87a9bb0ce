"""Streaks: n values in a row above or below any level, counted over steps, evaluations and epochs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainswitch.config import StatisticsConfig
from trainswitch.statistics.state import Statistics
from trainswitch.statistics.streaks import (
    HOLD_SECONDS,
    STREAK_EVALUATIONS,
    STREAK_STEPS,
    EvaluationStreaks,
    StepStreaks,
)

VALUES = st.lists(
    st.one_of(st.floats(width=32), st.sampled_from([0.0, 1.0, math.nan, math.inf])), min_size=1, max_size=400
)


def longest(values: Sequence[float], limit: float) -> int:
    """Return how many values in a row lie above `limit` at most."""
    best = run = 0
    for value in values:
        run = run + 1 if value > limit else 0
        best = max(best, run)
    return best


@given(values=VALUES, limit=st.floats(allow_nan=False), cuts=st.lists(st.integers(0, 400)))
def test_a_level_is_above_a_limit_exactly_if_so_many_steps_in_a_row_were(
    values: list[float], limit: float, cuts: list[int]
) -> None:
    """Whatever the values, the limit, and the moments at which somebody looks in between."""
    streaks = StepStreaks()
    for number, value in enumerate(values):
        streaks.update(value, 0.0)
        if number in cuts:
            streaks.levels()
    levels = streaks.levels()
    for steps, upper, lower in zip(STREAK_STEPS, levels["upper"], levels["lower"], strict=True):
        assert (upper > limit) is (longest(values, limit) >= steps)
        assert (lower < limit) is (longest([-value for value in values], -limit) >= steps)


def test_a_streak_is_seen_for_half_a_minute_and_then_no_more() -> None:
    """No scrape can miss it, and trouble that has ended does not fire for ever."""
    streaks = StepStreaks()
    for step in range(50):
        streaks.update(7.0 if 10 <= step < 13 else 1.0, float(step))
        expected = 7.0 if 12 <= step <= 12 + HOLD_SECONDS else 1.0
        if step >= 2:
            assert streaks.levels()["upper"][STREAK_STEPS.index(3)] == expected, step


def test_the_last_step_is_seen_however_slow_the_steps_are() -> None:
    """Steps of ten minutes: the level stays until the next one."""
    streaks = StepStreaks()
    for step, value in enumerate((7.0, 8.0, 9.0)):
        streaks.update(value, 600.0 * step)
        assert streaks.levels()["upper"][0] == value
    assert streaks.levels()["upper"][STREAK_STEPS.index(3)] == 7.0


def test_many_steps_between_two_looks_are_all_counted() -> None:
    """A streak in the middle of ten thousand steps of which no scrape sees one."""
    streaks = StepStreaks()
    for step in range(10_000):
        streaks.update(9.0 if 5000 <= step < 5005 else 1.0, step * 0.0005)
    upper = dict(zip(STREAK_STEPS, streaks.levels()["upper"], strict=True))
    assert {steps: level for steps, level in upper.items() if level == 9.0} == dict.fromkeys(
        (1, 2, 3, 4, 5), 9.0
    )


def test_a_rollback_ends_a_streak() -> None:
    """The steps after it do not follow those before it."""
    statistics = Statistics(StatisticsConfig())
    for value in (9.0, 9.0):
        statistics.take_streaks(0.0, None, loss=value)
    statistics.rewind(0)
    statistics.take_streaks(1.0, None, loss=9.0)
    upper = dict(zip(STREAK_STEPS, statistics.streaks["loss"].levels()["upper"], strict=True))
    assert upper[2] == 9.0
    assert upper[3] == -math.inf


@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=30))
def test_evaluations_in_a_row_are_the_newest_ones(values: list[float]) -> None:
    """The level of n is that of the last n, and there is none before there are n."""
    streaks = EvaluationStreaks()
    for value in values:
        streaks.update(value, None)
    levels = streaks.levels()
    for length in STREAK_EVALUATIONS:
        newest = values[-length:] if len(values) >= length else []
        assert levels.get(("upper", "evaluations", length)) == min(newest, default=None)
        assert levels.get(("lower", "evaluations", length)) == max(newest, default=None)
        assert levels.get(("upper", "epochs", length)) == min(newest, default=None)


def test_an_epoch_has_one_value_its_newest() -> None:
    """Evaluating twice an epoch does not make two of it; 1.5 is part of the epoch that 2 ends."""
    streaks = EvaluationStreaks()
    for epoch, value in ((0.5, 0.9), (1.0, 0.8), (1.5, 0.2), (2.0, 0.7), (3.0, 0.6)):
        streaks.update(value, epoch)
    levels = streaks.levels()
    assert levels["lower", "epochs", 3] == 0.8
    assert levels["lower", "epochs", 2] == 0.7
    assert levels["upper", "evaluations", 3] == 0.2
    assert ("lower", "epochs", 5) not in levels
    assert levels["lower", "evaluations", 5] == 0.9


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_evaluation_that_is_not_finite_is_left_out(value: float) -> None:
    """It is counted as non-finite, and is no value that could lie above or below something."""
    streaks = EvaluationStreaks()
    for one in (0.9, value, 0.8):
        streaks.update(one, None)
    assert streaks.levels()["upper", "evaluations", 2] == 0.8


def test_streaks_of_evaluations_go_on_after_a_resumption() -> None:
    """Evaluations are rare: a run that is resumed does not forget those before."""
    statistics = Statistics(StatisticsConfig())
    statistics.take_streaks(0.0, 1.0, loss=1.0)
    statistics.take_evaluation("val_accuracy", 0.9)
    state = json.loads(json.dumps(statistics.state_dict()))
    resumed = Statistics.from_state(StatisticsConfig(), state)
    resumed.take_streaks(1.0, 2.0, loss=1.0)
    resumed.take_evaluation("val_accuracy", 0.8)
    assert resumed.evaluation_streaks("val_accuracy")["lower", "epochs", 2] == 0.9
