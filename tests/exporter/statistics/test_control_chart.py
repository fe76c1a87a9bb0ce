"""The loss's control chart."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats

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


@given(st.integers(0, 2**32 - 1), st.sampled_from([10, 100]), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]))
@settings(max_examples=40, deadline=None)
def test_within_the_limits_the_chart_is_three_linear_filters(seed: int, span: int, scale: float) -> None:
    """Centre, variance and statistic are SciPy's filters of values, squares and deviations, at any scale."""
    values = np.random.default_rng(seed).uniform(-1.0, 1.0, 210) * scale  # never beyond three sigmas for long
    chart = ControlChart(span, 0.2)
    for value in values[:10]:
        assert chart.update(float(value)) is None
    center, sigma = chart.center, chart.sigma
    assert center == np.sort(values[:10])[5]
    spread = np.abs(values[:10] - center)
    assert sigma == pytest.approx(np.sort(spread)[5] / stats.norm.ppf(0.75), rel=1e-4)
    centers, deviations, statistics = [center], [], []
    for value in values[10:]:
        deviation = chart.update(float(value))
        assert deviation is not None
        if abs(deviation.sigmas) > 3.0:
            return  # the rest of this series is not linear
        centers.append(chart.center)
        deviations.append(deviation.sigmas)
        statistics.append(deviation.chart)
    a = 2.0 / (span + 1)
    expected, _ = signal.lfilter([a], [1.0, a - 1.0], values[10:], zi=[(1.0 - a) * center])
    assert centers[1:] == pytest.approx(expected, rel=1e-9, abs=1e-9 * scale)
    residuals = values[10:] - np.array(centers[:-1])
    variance, _ = signal.lfilter(
        [a], [1.0, a - 1.0], (residuals / scale) ** 2, zi=[(1.0 - a) * (sigma / scale) ** 2]
    )
    assert chart.sigma / scale == pytest.approx(math.sqrt(variance[-1]), rel=1e-9)
    ewma = signal.lfilter([0.2], [1.0, -0.8], deviations)
    t = np.arange(1, len(ewma) + 1)
    assert statistics == pytest.approx(
        ewma / np.sqrt(0.2 / 1.8 * (1.0 - 0.8 ** (2 * t))), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize("shift", [10.0, 20.0, 200.0])
@pytest.mark.parametrize("level", [2.0, 0.0, -3.0])
def test_trouble_that_lasts_stays_beyond_six_sigmas_until_the_chart_recentres(
    shift: float, level: float
) -> None:
    """A shifted level does not widen its own limits: for nearly a span of steps it is seen as what it is."""
    rng = np.random.default_rng(5)
    chart = filled(rng.normal(level, 0.05, 600))
    seen = [chart.update(float(value)) for value in rng.normal(level + shift * 0.05, 0.05, 150)]
    beyond = [deviation is not None and deviation.sigmas > 6.0 for deviation in seen]
    assert sum(beyond) >= 95
    assert not any(beyond[105:])
    assert sum(deviation is not None and deviation.recentered for deviation in seen) == 1


def test_noise_that_grows_on_both_sides_widens_the_limits() -> None:
    """Ten times the noise is noise again after a while: excursions that change sides do move sigma."""
    rng = np.random.default_rng(6)
    chart = filled(rng.normal(2.0, 0.05, 600))
    filled_more = [chart.update(float(value)) for value in rng.normal(2.0, 0.5, 1000)]
    assert chart.sigma == pytest.approx(0.5, rel=0.3)
    assert not any(deviation is not None and abs(deviation.sigmas) > 6.0 for deviation in filled_more[500:])


@given(
    st.lists(st.floats(-10, 10), min_size=10, max_size=120),
    st.sampled_from([1e-30, 1e-10, 1e10, 1e30]),
)
@settings(deadline=None)
def test_deviations_do_not_depend_on_the_unit(values: list[float], unit: float) -> None:
    """The loss in other units has the same deviations, from 1e-30 to 1e30; negative and around zero, too."""
    plain, scaled = ControlChart(20, 0.2), ControlChart(20, 0.2)
    power = 2.0 ** round(math.log2(unit))  # exact in floating point
    for value in values:
        if 0.0 < abs(value) < 1e-200:
            value = 0.0
        ours, theirs = plain.update(value), scaled.update(value * power)
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None and plain.sigma > 1e-200:
            assert theirs.sigmas == pytest.approx(ours.sigmas, rel=1e-6, abs=1e-6)


def test_a_charts_state_survives_json() -> None:
    """After a round trip the next deviations are the same, in the midst of an excursion, too."""
    rng = np.random.default_rng(7)
    chart = filled(np.concatenate([rng.normal(2, 0.1, 200), rng.normal(5, 0.1, 50)]))
    loaded = ControlChart(100, 0.2)
    loaded.load_state_dict(json.loads(json.dumps(chart.state_dict(), allow_nan=False)))
    for value in rng.normal(5, 0.1, 100):
        assert loaded.update(float(value)) == chart.update(float(value))
