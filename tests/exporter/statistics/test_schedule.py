"""The learning rate from step to step: what is a change, what is none, and what is not known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainswitch.statistics.schedule import LearningRates


def steps(rates: LearningRates, *values: float) -> list[float | None]:
    """Take one step of a single group for each value, and return the ratios."""
    found = []
    for value in values:
        rates.begin_step()
        found.append(rates.take(0, value))
    return found


def test_a_changed_rate_is_a_ratio_and_an_unchanged_one_is_none() -> None:
    """Each step is compared with the one before it."""
    assert steps(LearningRates(), 0.1, 0.1, 0.2, 0.02) == [None, None, 2.0, pytest.approx(0.1)]


def test_a_rate_from_or_to_zero_has_no_ratio_but_is_a_change() -> None:
    """A warm-up that begins at 0, or a decay that ends there, is no jump by an infinite factor."""
    rates = LearningRates()
    assert steps(rates, 0.0, 0.1, 0.0) == [None, None, None]
    assert rates.unchanged == 0


@given(st.lists(st.sampled_from([0.1, 0.2, 0.4]), min_size=1, max_size=30))
def test_the_unchanged_steps_are_those_since_the_last_change(values: list[float]) -> None:
    """Counted from the last step whose rate differs from the one before it."""
    rates = LearningRates()
    steps(rates, *values)
    since = 0
    while since + 1 < len(values) and values[-since - 2] == values[-1]:
        since += 1
    assert rates.unchanged == (since if since + 1 < len(values) else len(values))


def test_one_group_that_moves_is_enough() -> None:
    """A frozen group beside one that decays is no stuck schedule."""
    rates = LearningRates()
    for number in range(5):
        rates.begin_step()
        rates.take(0, 0.1)
        rates.take(1, 0.1 / (number + 1))
    assert rates.unchanged == 0


def test_rates_that_are_not_known_are_left_out() -> None:
    """NaN is a rate on a device: no change, and nothing to count if there is no other."""
    rates = LearningRates()
    assert steps(rates, math.nan, math.nan) == [None, None]
    assert rates.unchanged is None
    assert steps(rates, 0.1, math.nan, 0.2) == [None, None, 2.0]


def test_where_the_run_goes_on_from_somewhere_else_nothing_has_jumped() -> None:
    """After a rollback or a resumption the first rate is compared with none."""
    rates = LearningRates()
    steps(rates, 0.1)
    rates.forget()
    assert steps(rates, 10.0) == [None]


def test_the_count_begins_anew_with_a_phase() -> None:
    """A phase that may not stand still is not charged with the constant one before it."""
    rates = LearningRates()
    steps(rates, *[0.1] * 10)
    rates.begin_count()
    steps(rates, 0.1)
    assert rates.unchanged == 1
