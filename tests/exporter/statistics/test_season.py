"""The loss's own centre in each phase of a period."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainswitch.config import StatisticsConfig
from trainswitch.statistics.season import MOST_PHASES, SEASONS_REMEMBERED, Season
from trainswitch.statistics.state import Statistics


def filled(values: np.ndarray, length: int) -> Season:
    """A season that has seen `values` from step 0 on."""
    season = Season(length)
    for step, value in enumerate(values):
        season.update(step, float(value))
    return season


@given(st.integers(2, 12), st.integers(1, 8), st.randoms(use_true_random=False))
def test_each_phases_centre_is_the_lower_median_of_its_seasons(
    length: int, seasons: int, random: object
) -> None:
    """The table equals NumPy's, once each phase has been through a season."""
    values = np.array([random.uniform(-5, 5) for _ in range(length * seasons + 1)])  # type: ignore[attr-defined]
    season = filled(values, length)
    table = values[: length * seasons].reshape(seasons, length)[-SEASONS_REMEMBERED:]
    centers = np.sort(table, axis=0)[(len(table) - 1) // 2]
    assert season.ready
    for step in range(length):
        assert season.offset(step) == pytest.approx(centers[step] - centers.mean(), abs=1e-9)


def test_nothing_is_known_before_a_season_is_over() -> None:
    """Until then the offset is zero: the loss is judged as it is."""
    season = filled(np.arange(99.0), 100)
    assert not season.ready
    assert season.offset(7) == 0.0


@pytest.mark.parametrize("length", [2, MOST_PHASES, MOST_PHASES + 1, 10_000, 1_000_003])
def test_the_table_is_bounded(length: int) -> None:
    """However long the season, there are at most so many phases, and every step has one."""
    season = Season(length)
    phases = {season._phase_of(step) for step in range(0, length, max(1, length // 1000))}
    assert phases <= set(range(min(length, MOST_PHASES)))
    assert season._phase_of(length - 1) == min(length, MOST_PHASES) - 1
    assert len(json.dumps(season.state_dict())) < 64_000


def deviations(season_steps: int | None, loss: np.ndarray) -> np.ndarray:
    """Deviation of each step on the chart; NaN where there is none."""
    statistics = Statistics(StatisticsConfig(season_steps=season_steps))
    found = []
    for step, value in enumerate(loss):
        statistics.advance(step)
        deviation = statistics.take_loss(step, float(value))
        found.append(deviation.sigmas if deviation is not None else math.nan)
    return np.array(found)


def test_an_epoch_periodic_loss_raises_no_alarm_and_a_real_shift_still_does() -> None:
    """A jump of forty sigmas at each epoch is the phase's own centre; half of that elsewhere is trouble."""
    rng = np.random.default_rng(0)
    epoch = np.where(np.arange(250) < 30, 4.0, 2.0)  # the first steps of each epoch are hard
    loss = np.tile(epoch, 16) + rng.normal(0, 0.05, 4000)
    assert (deviations(None, loss)[1000:] > 6).sum() > 100
    assert (deviations(250, loss)[1000:] > 6).sum() == 0
    loss[3800:3850] += 1.0
    assert (deviations(250, loss)[3800:3850] > 6).sum() == 50


def test_a_bad_season_does_not_become_the_norm() -> None:
    """Trouble in one season leaves the next season's centres where they were."""
    values = np.full(401, 2.0)
    values[210:220] = 50.0
    assert filled(values, 100).offset(15) == pytest.approx(0.0)


def test_the_state_of_another_season_is_not_taken() -> None:
    """A table for another period says nothing about this one."""
    state = filled(np.arange(31.0), 10).state_dict()
    same, other = Season(10), Season(11)
    same.load_state_dict(state)
    other.load_state_dict(state)
    assert same.ready
    assert not other.ready
