"""The loss's control chart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainswitch.statistics.control_chart import ControlChart


def filled(values: np.ndarray, span: int = 100) -> ControlChart:
    """A chart that has seen `values`."""
    chart = ControlChart(span, 0.2)
    for value in values:
        chart.update(float(value))
    return chart


def test_centre_and_sigma_of_normal_values_match_numpy() -> None:
    """On a stationary normal series the centre line and sigma are near the sample mean and deviation."""
    values = np.random.default_rng(0).normal(5.0, 0.3, 5000)
    chart = filled(values)
    assert chart.center == pytest.approx(values.mean(), abs=0.1)
    assert chart.sigma == pytest.approx(values.std(), rel=0.2)


def test_the_chart_statistic_of_normal_values_has_unit_variance() -> None:
    """The EWMA is divided by its own standard deviation: about 0.3 % of the values lie beyond 3."""
    rng = np.random.default_rng(1)
    chart = filled(rng.normal(0, 1, 500), span=2000)
    deviations = [chart.update(float(value)) for value in rng.normal(0, 1, 20000)]
    statistics = np.array([deviation.chart for deviation in deviations if deviation is not None])
    assert 0.8 < statistics.std() < 1.25
    assert (np.abs(statistics) > 3).mean() < 0.02


def test_one_spike_is_seen_and_moves_nothing() -> None:
    """A spike of a thousand sigmas is reported as such; centre and sigma hardly move."""
    chart = filled(np.random.default_rng(2).normal(2.0, 0.05, 500))
    center, sigma = chart.center, chart.sigma
    spike = chart.update(52.0)
    assert spike is not None
    assert spike.sigmas > 300
    assert spike.chart < 6
    assert chart.center == pytest.approx(center, abs=sigma)
    assert chart.sigma == pytest.approx(sigma, rel=0.2)


def test_a_lasting_shift_shows_in_the_chart_and_is_recentred_in_bounded_time() -> None:
    """After a level shift the statistic rises at once, and within a few spans the centre is the new level."""
    chart = filled(np.random.default_rng(3).normal(2.0, 0.05, 500))
    deviations = [chart.update(4.0) for _ in range(400)]
    assert max(d.chart for d in deviations[:20] if d) > 6
    assert chart.center == pytest.approx(4.0, abs=0.1)


def test_a_constant_series_has_no_tight_limits() -> None:
    """On a flat series a change of a thousandth is one sigma, not infinitely many."""
    chart = filled(np.full(200, 3.0))
    deviation = chart.update(3.003)
    assert deviation is not None
    assert deviation.sigmas == pytest.approx(1.0, rel=0.01)


def test_non_finite_values_leave_the_chart_as_it_was() -> None:
    """NaN and infinities give no deviation and change nothing."""
    chart = filled(np.random.default_rng(4).normal(0, 1, 100))
    before = (chart.center, chart.sigma)
    assert [chart.update(value) for value in (math.nan, math.inf, -math.inf)] == [None] * 3
    assert (chart.center, chart.sigma) == before


@given(
    st.lists(
        st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([1e-30, -1e30, 1e308, -1e308, 0.0]),
        max_size=300,
    )
)
@settings(max_examples=100, deadline=None)
def test_no_series_breaks_the_chart(values: list[float]) -> None:
    """Whatever comes, deviations and chart statistics are numbers and nothing raises."""
    chart = ControlChart(20, 0.2)
    for value in values:
        deviation = chart.update(value)
        if deviation is not None:
            assert not math.isnan(deviation.sigmas)
            assert math.isfinite(deviation.chart)
