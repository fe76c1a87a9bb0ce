"""The excess of losses over those before them, what most of five steps reach, and the rise over the first."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainswitch.statistics.excess import FLOOR, WINDOW_STEPS, Lasting, LossExcess, LossRise

finite = st.floats(-1e6, 1e6, width=32)


def filled(values: np.ndarray) -> LossExcess:
    """An excess that has seen `values`."""
    excess = LossExcess()
    for value in values:
        excess.update(float(value))
    return excess


def noise(seed: int, steps: int = 100) -> np.ndarray:
    """A healthy loss around 2.0 with a sigma of 0.05."""
    return np.random.default_rng(seed).normal(2.0, 0.05, steps)


@given(st.lists(finite, min_size=1, max_size=60), finite)
@settings(deadline=None)
def test_lasting_exceeds_a_limit_exactly_if_three_of_five_do(values: list[float], limit: float) -> None:
    """The statistic and the definition agree for every limit, at every step."""
    lasting = Lasting()
    for number, value in enumerate(values, start=1):
        found = lasting.update(value)
        last = values[max(0, number - 5) : number]
        if len(last) < 3:
            assert found is None
        else:
            assert found is not None
            assert (found > limit) == (sum(one > limit for one in last) >= 3)
        assert lasting.now == found


@given(st.lists(st.floats(-100, 100, width=32), min_size=9, max_size=80))
@settings(deadline=None)
def test_the_excess_is_over_the_median_and_spread_of_those_before(values: list[float]) -> None:
    """It equals NumPy's on the window that ends before the value, by the nearest order statistics."""
    excess = filled(np.array(values[:-1]))
    found = excess.update(values[-1])
    assert found is not None
    before = np.sort(np.array(values[-1 - WINDOW_STEPS : -1]))
    n = len(before)
    center = before[n // 2]
    spread = max(
        (before[3 * n // 4] - before[n // 4]) / 1.349, (before[9 * n // 10] - before[n // 10]) / 2.563
    )
    spread = spread or (before[-1] - before[0]) / 2.563
    expected = (values[-1] - center) / max(spread, FLOOR * abs(center), 1e-300)
    assert found[0] == pytest.approx(max(-1e300, min(expected, 1e300)), rel=1e-6, abs=1e-9)


def test_sigma_of_a_normal_series_is_its_deviation() -> None:
    """The two spreads are scaled to standard deviations: few excesses of noise lie beyond 4."""
    rng = np.random.default_rng(0)
    excess = LossExcess()
    seen = [excess.update(float(value)) for value in rng.normal(0.0, 3.0, 20000)]
    excesses = np.array([one[0] for one in seen if one is not None])
    assert 0.8 < excesses.std() < 1.3
    assert (excesses > 6.0).mean() < 1e-3


def test_a_lasting_rise_is_seen_at_its_third_step() -> None:
    """One and two steps reach nothing, the third does, and it ends when most steps are usual again."""
    excess = filled(noise(1))
    reached = [excess.update(value) for value in (3.0, 3.0, 3.0, 2.0, 2.0, 2.0)]
    lasting = [one[1] is not None and one[1] > 6.0 for one in reached if one is not None]
    assert lasting == [False, False, True, True, True, False]


def test_a_spike_of_one_step_lasts_nowhere() -> None:
    """A single document a thousand sigmas off is seen as one step, and never as a trouble that lasts."""
    excess = filled(noise(2))
    spike = excess.update(52.0)
    assert spike is not None
    assert spike[0] > 300
    after = [excess.update(float(value)) for value in noise(3, 40)]
    assert not any(one is not None and one[1] is not None and one[1] > 6.0 for one in after)


def test_a_new_level_is_the_usual_one_after_half_a_window() -> None:
    """A shift is seen for some steps, is forgotten within a window, and the best level is remembered."""
    excess = filled(noise(4))
    seen = [excess.update(float(value) + 2.0) for value in noise(5, 2 * WINDOW_STEPS)]
    beyond = [one is not None and one[1] is not None and one[1] > 6.0 for one in seen]
    assert sum(beyond) >= 3
    assert not any(beyond[WINDOW_STEPS:])
    level = excess.level()
    assert level is not None
    assert level.recent == pytest.approx(4.0, abs=0.1)
    assert level.best == pytest.approx(2.0, abs=0.1)


def test_a_constant_series_has_no_tight_limits() -> None:
    """On a flat loss 0.3 % are one sigma; where nearly all are zero, the exceptions are the spread."""
    flat = filled(np.full(50, 3.0)).update(3.0 * (1.0 + FLOOR))
    assert flat is not None
    assert flat[0] == pytest.approx(1.0, rel=0.01)
    rewards = filled(np.array([0.0] * 30 + [0.1, -0.1])).update(0.1)
    assert rewards is not None
    assert rewards[0] < 3.0


@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([1e-30, -1e30, 1e308, -1e308, 0.0]),
        max_size=120,
    )
)
@settings(max_examples=100, deadline=None)
def test_no_series_breaks_the_excess(values: list[float]) -> None:
    """Whatever comes, what is returned is a number, and values that are none change nothing."""
    excess, rise = LossExcess(), LossRise()
    for value in values:
        before = repr(excess.state_dict())
        found = excess.update(value)
        if not math.isfinite(value):
            assert found is None
            assert repr(excess.state_dict()) == before
            continue
        assert found is None or all(one is None or math.isfinite(one) for one in found)
        risen = rise.update(value)
        assert risen is None or math.isfinite(risen)


@given(st.lists(finite, max_size=80), st.lists(finite, max_size=20))
@settings(deadline=None)
def test_a_state_survives_json(before: list[float], after: list[float]) -> None:
    """The window, the best level and the first loss go on; what the last five reached does not."""
    excess, rise = LossExcess(), LossRise()
    for value in before:
        excess.update(value)
        rise.update(value)
    other, other_rise = LossExcess(), LossRise()
    other.load_state_dict(json.loads(json.dumps(excess.state_dict(), allow_nan=False)))
    other_rise.load_state_dict(json.loads(json.dumps(rise.state_dict(), allow_nan=False)))
    excess.lasting.interrupt()
    rise.lasting.interrupt()
    for value in after:
        assert other.update(value) == excess.update(value)
        assert other_rise.update(value) == rise.update(value)
        assert repr(other.level()) == repr(excess.level())


def test_a_loss_of_six_times_the_first_is_a_rise_at_its_third_step() -> None:
    """Three of five losses have to reach it, from the very first steps on."""
    rise = LossRise()
    found = [rise.update(value) for value in (1.6, 9.6, 9.6, 9.6)]
    assert found[:2] == [None, None]
    assert found[2] == pytest.approx(1.0)
    assert found[3] == pytest.approx(6.0)


@pytest.mark.parametrize("losses", [(0.0, 5.0, 5.0, 5.0), (0.001, 5.0, 5.0, 5.0), (-1.0, -9.0, -9.0, -9.0)])
def test_an_objective_without_a_zero_has_no_rise(losses: tuple[float, ...]) -> None:
    """A first loss of nothing, or one below zero, gives no ratio."""
    rise = LossRise()
    assert {rise.update(value) for value in losses} == {None}


def test_a_loss_that_was_once_negative_has_no_rise_any_more() -> None:
    """It is an objective that may be anything, however positive it began."""
    rise = LossRise()
    for value in (1.0, 4.0, 4.0, 4.0, -0.1, 4.0, 4.0):
        found = rise.update(value)
    assert (found, rise.lasting.now) == (None, None)


def test_what_lasted_ends_with_an_interruption() -> None:
    """After a pause or a rollback three further steps are needed."""
    excess = filled(noise(6))
    for _ in range(3):
        excess.update(4.0)
    before = excess.lasting.now
    excess.lasting.interrupt()
    assert before is not None
    assert excess.lasting.now is None
    after = [excess.update(4.0) for _ in range(3)]
    assert [one is not None and one[1] is None for one in after] == [True, True, False]
