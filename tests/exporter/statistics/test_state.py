"""All statistics together: their state, and a step counter that goes back."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainswitch.config import StatisticsConfig
from trainswitch.statistics.state import Statistics

SMALL = StatisticsConfig(
    warmup_steps=30, loss_span_steps=10, gradient_window_steps=16, trend_window_steps=8, season_steps=12
)
steps = st.lists(
    st.tuples(st.floats(), st.floats(), st.floats(), st.integers(0, 9)),
    max_size=80,
)


def feed(statistics: Statistics, step: int, loss: float, norm: float, score: float) -> list[Any]:
    """Feed one step as the aggregator does, and return all that is seen of it."""
    seen: list[Any] = [statistics.advance(step)]
    if math.isfinite(loss):
        seen += [statistics.take_loss(step, loss), statistics.take_loss_excess(step, loss)]
        seen.append(statistics.rise.update(loss))
    if math.isfinite(norm):
        seen.append(statistics.take_grad_norm(norm))
    seen.append(statistics.baseline.update(loss=loss, grad_norm=norm, step_seconds=0.1))
    statistics.evaluations.update("score", score)
    return [
        *seen,
        statistics.loss_limits(),
        statistics.trend.trend(),
        statistics.excess.level(),
        statistics.gradients.climb(),
        statistics.gradients.quantiles([0.0, 0.25, 0.5, 0.75, 1.0]),
        statistics.baseline.frozen,
        statistics.evaluations.windows("score"),
        statistics.evaluations.best("score"),
    ]


@given(steps, steps)
@settings(deadline=None, max_examples=60)
def test_a_state_that_was_saved_goes_on_as_if_nothing_had_happened(before: Any, after: Any) -> None:
    """After a round trip through JSON, each further step is seen as without it, whatever the values.

    Saved between two phases of the season, so that no phase's contribution is cut in two, and in a pause.
    """
    original = Statistics(SMALL)
    for step, (loss, norm, score, _) in enumerate(before):
        feed(original, step, loss, norm, score)
    if original._season is not None:
        original._season._close()
    loaded = Statistics.from_state(SMALL, json.loads(json.dumps(original.state_dict(), allow_nan=False)))
    original.interrupt()  # what the last steps reached is not in the state
    for step, (loss, norm, score, back) in enumerate(after, start=len(before)):
        number = max(0, step - back)
        assert repr(feed(loaded, number, loss, norm, score)) == repr(
            feed(original, number, loss, norm, score)
        )


def test_a_counter_that_goes_back_unannounced_begins_anew() -> None:
    """Another run in the same process has its own warm-up, centre line and best."""
    statistics = Statistics(SMALL)
    for step in range(1, 101):
        feed(statistics, step, 2.0 + step % 3, 1.0, 0.5)
    assert [statistics.baseline.ready, statistics.advance(1), statistics.baseline.ready] == [
        True,
        True,
        False,
    ]
    assert statistics.loss_limits() is None
    assert statistics.evaluations.metrics == ("score",)
    assert math.isnan(statistics.evaluations.best("score"))
    assert not statistics.advance(2)


def test_a_counter_that_goes_back_by_a_rollback_goes_on() -> None:
    """After a rollback the warm-up stays over; going back once more, unannounced, is another run."""
    statistics = Statistics(SMALL)
    for step in range(1, 101):
        feed(statistics, step, 2.0 + step % 3, 1.0, 0.5)
    statistics.rewind(50)
    assert not statistics.advance(51)
    assert statistics.baseline.ready
    assert statistics.advance(40)


def test_a_state_under_other_settings_is_taken_as_far_as_it_fits() -> None:
    """Shorter windows keep the newest values; without the season, its chart is dropped."""
    original = Statistics(SMALL)
    for step in range(1, 101):
        feed(original, step, float(step), float(step), 0.5)
    state = original.state_dict()
    shorter = StatisticsConfig(gradient_window_steps=16, trend_window_steps=8, loss_span_steps=5)
    loaded = Statistics.from_state(shorter, state)
    trend = loaded.trend.trend()
    assert trend is not None
    assert (trend.minimum, trend.maximum) == (93.0, 100.0)
    assert loaded.loss_limits() is None
    assert loaded.baseline.ready


@pytest.mark.parametrize("damage", [
    None, [], {}, {"version": 99}, {"step": None}, {"chart": {}}, {"trend": {"values": ["high"]}},
    {"baseline": 3}, {"evaluations": {"x": {"values": 1, "best": None}}}, {"step": math.inf},
])  # fmt: skip
def test_what_is_no_state_is_refused(damage: Any) -> None:
    """One sentence, and no exception but ValueError."""
    state = {**Statistics(SMALL).state_dict(), **damage} if damage else damage
    with pytest.raises(ValueError, match=r"cannot be read|is damaged"):
        Statistics.from_state(SMALL, state)


def test_the_state_is_bounded() -> None:
    """A hundred thousand steps later it is no larger than after the windows were full."""
    statistics = Statistics(StatisticsConfig(season_steps=1000))
    sizes = []
    for step in range(100_000):
        feed_lightly(statistics, step)
        if step in (900, 6_000, 99_999):
            sizes.append(len(json.dumps(statistics.state_dict())))
    assert sizes[2] <= sizes[1] * 1.01
    assert max(sizes) < 200_000


def feed_lightly(statistics: Statistics, step: int) -> None:
    """Feed one step without looking at the windows."""
    loss = 2.0 + math.sin(step)
    statistics.advance(step)
    statistics.take_loss(step, loss)
    statistics.take_loss_excess(step, loss)
    statistics.take_grad_norm(abs(loss))
    statistics.baseline.update(loss=loss, grad_norm=loss, step_seconds=loss)
