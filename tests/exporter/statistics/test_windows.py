"""Gradient window, trend window and baseline."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from trainswitch.statistics.windows import Baseline, GradientWindow, TrendWindow, quantile

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(finite, min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    """Interpolation is linear, as NumPy's default."""
    assert quantile(sorted(values), q) == pytest.approx(float(np.quantile(values, q)), rel=1e-6, abs=1e-6)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=60))
@settings(deadline=None)
def test_trend_is_least_squares(values: list[float]) -> None:
    """Slope and standard error equal those of NumPy's least squares; order statistics equal NumPy's."""
    window = TrendWindow(64)
    for value in values:
        window.update(value)
    trend = window.trend()
    assert trend is not None
    x = np.arange(len(values))
    size = max(abs(v) for v in values) or 1.0
    coefficients = np.polynomial.polynomial.polyfit(x, values, 1)
    assert trend.slope == pytest.approx(coefficients[1], rel=1e-6, abs=1e-8 * size)
    residual = np.asarray(values) - np.polynomial.polynomial.polyval(x, coefficients)
    stderr = math.sqrt((residual**2).sum() / (len(values) - 2) / ((x - x.mean()) ** 2).sum())
    assert trend.slope_stderr == pytest.approx(stderr, rel=1e-5, abs=1e-7 * size)
    assert (trend.minimum, trend.maximum) == (min(values), max(values))
    assert trend.median == pytest.approx(np.median(values))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, 1e200])
def test_trend_holds_over_all_scales(scale: float) -> None:
    """A straight line has its slope and no error, from 1e-30 to 1e200."""
    window = TrendWindow(10)
    for i in range(30):
        window.update(scale * i)
    trend = window.trend()
    assert trend is not None
    assert trend.slope == pytest.approx(scale)
    assert trend.slope_stderr == pytest.approx(0.0, abs=1e-9 * scale)
    assert trend.minimum == 20 * scale


def test_trend_leaves_non_finite_values_out() -> None:
    """NaN and infinity do not enter the window, and two values are too few."""
    window = TrendWindow(10)
    for value in (1.0, math.nan, math.inf, 2.0):
        window.update(value)
    assert window.trend() is None


def test_gradient_ratio_is_to_the_trailing_median() -> None:
    """The ratio compares a norm with the median of those before it, not including it."""
    window = GradientWindow(100)
    for _ in range(50):
        window.update(2.0)
    assert window.update(30.0) == pytest.approx(15.0)
    assert window.update(2.0) == pytest.approx(1.0)


def test_a_climb_is_the_newest_median_over_the_one_before() -> None:
    """Norms that rise by a half are seen as 1.5 when the newest 64 all have, whatever spikes there are."""
    window = GradientWindow(512)
    norms = [2.0 if number % 50 else 1e6 for number in range(400)] + [
        3.0 if number % 9 else 1e6 for number in range(64)
    ]
    for number, norm in enumerate(norms, start=1):
        assert (window.climb() is None) == (number <= 320)
        window.update(norm)
    assert window.climb() == 1.5


def test_a_climb_needs_enough_norms_that_are_not_zero() -> None:
    """A window that is too short never says anything, and nothing can be told against a median of zero."""
    short, zeros = GradientWindow(319), GradientWindow(512)
    for _ in range(400):
        short.update(1.0)
        zeros.update(0.0)
    assert short.climb() is None
    assert zeros.climb() is None


def test_norms_of_zero_say_nothing_about_the_size_of_the_others() -> None:
    """Steps without any gradient have ratio 0, and leave the median of the other norms as it was."""
    window = GradientWindow(100)
    for number in range(60):
        window.update(0.0 if number % 3 else 2.0)
    assert window.update(0.0) == 0.0
    assert window.update(30.0) == pytest.approx(15.0)
    assert window.quantiles([0.0]) == [0.0]


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=20, max_size=60), st.sampled_from([1e-30, 1.0, 1e200])
)
@settings(deadline=None)
def test_autocorrelation_is_that_of_the_deviations_from_the_line(values: list[float], scale: float) -> None:
    """It equals NumPy's on the last twenty values, whatever the unit; values on a line have none."""
    window = TrendWindow(64)
    for value in values:
        window.update(value * scale)
    found = window.autocorrelation(20)
    last = np.asarray(values[-20:])
    size = np.abs(last).max() or 1.0
    x = np.arange(20)
    residuals = last / size - np.polynomial.polynomial.polyval(
        x, np.polynomial.polynomial.polyfit(x, last / size, 1)
    )
    if (residuals**2).sum() < 1e-6:
        return  # NumPy's rounding errors are of that order
    assert found == pytest.approx((residuals[1:] * residuals[:-1]).sum() / (residuals**2).sum(), abs=1e-4)


def test_autocorrelation_tells_jumps_from_noise_and_lines() -> None:
    """Up and down is near -1, noise near 0; too few values and a straight line have none."""
    window = TrendWindow(64)
    for number in range(64):
        window.update(2.0 - 0.01 * number)
    assert window.autocorrelation(64) is None
    for number in range(64):
        window.update(2.0 + (-1) ** number * 0.1 - 0.001 * number)
    found = window.autocorrelation(64)
    assert found is not None
    assert found < -0.9
    for value in np.random.default_rng(0).normal(2.0, 0.1, 64):
        window.update(float(value))
    found = window.autocorrelation(64)
    assert found is not None
    assert abs(found) < 0.3
    assert window.autocorrelation(65) is None


def test_an_explosion_does_not_become_its_own_reference() -> None:
    """Half a window of exploded norms later, the ratio still says explosion; the quantiles tell the truth."""
    window = GradientWindow(100)
    rng = np.random.default_rng(0)
    for value in rng.lognormal(0, 0.2, 200):
        window.update(float(value))
    ratios = [window.update(1000.0) for _ in range(60)]
    assert all(ratio is not None and ratio > 100 for ratio in ratios)
    assert window.quantiles([1.0]) == [1000.0]


def test_a_lasting_new_level_is_accepted_in_bounded_time() -> None:
    """After some windows at a new level the ratio is one again."""
    window = GradientWindow(64)
    for _ in range(100):
        window.update(1.0)
    ratios = [window.update(5.0) for _ in range(64 * 6)]
    assert ratios[-1] == pytest.approx(1.0, rel=0.05)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200))
@settings(deadline=None)
def test_no_norm_breaks_the_window(norms: list[float]) -> None:
    """Zeros, subnormals, huge, negative and non-finite norms are taken or left out; nothing raises."""
    window = GradientWindow(16)
    for norm in norms:
        ratio = window.update(norm)
        assert ratio is None or (ratio >= 0 and math.isfinite(ratio))


def test_baseline_freezes_at_the_end_of_the_warm_up() -> None:
    """Median and interquartile range are of the warm-up's finite values, and stay."""
    baseline = Baseline(5)
    ended = [baseline.update(loss=value, grad_norm=None) for value in (1.0, 2.0, math.nan, 3.0, 4.0)]
    assert ended == [False] * 4 + [True]
    assert baseline.frozen == {"loss": (2.5, 1.5)}
    assert baseline.update(loss=100.0) is False
    assert baseline.frozen == {"loss": (2.5, 1.5)}


def test_no_warm_up_means_ready_at_once() -> None:
    """With zero steps of warm-up, limits hold from the start."""
    assert Baseline(0).ready


@given(st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=80), st.sampled_from([1e-30, 1.0, 1e30]))
@settings(deadline=None)
def test_trend_is_scipys_regression_of_the_window(values: list[float], scale: float) -> None:
    """Over the last values, slope and standard error are SciPy's, from 1e-30 to 1e30."""
    window = TrendWindow(40)
    for value in values:
        window.update(value * scale)
    trend = window.trend()
    assert trend is not None
    last = np.array(values[-40:])
    if np.ptp(last) < 1e-3:  # SciPy has no standard error of a constant
        assert trend.slope_stderr / scale < 1e-3
        return
    expected = stats.linregress(np.arange(len(last)), last)
    assert trend.slope / scale == pytest.approx(expected.slope, rel=1e-6, abs=1e-9)
    assert trend.slope_stderr / scale == pytest.approx(expected.stderr, rel=1e-4, abs=1e-6)
    assert trend.median / scale == pytest.approx(np.median(last), rel=1e-9, abs=1e-12)


def test_a_spike_leaves_nothing_behind_in_the_trend() -> None:
    """Once a loss of 1e30 has left the window, the slope is exactly as if it had never been there."""
    with_spike, without = TrendWindow(16), TrendWindow(16)
    for i in range(40):
        with_spike.update(1e30 if i == 10 else 0.1 * i)
        without.update(0.1 * i)
    assert with_spike.trend() == without.trend()


@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=60))
@settings(deadline=None)
def test_gradient_quantiles_and_ratio_are_numpys(norms: list[float]) -> None:
    """Quantiles are those of the last norms; the first ratio is to the geometric median before it."""
    window = GradientWindow(32)
    ratios = [window.update(norm) for norm in norms]
    assert window.quantiles([0.25, 0.5, 1.0]) == pytest.approx(np.quantile(norms[-32:], [0.25, 0.5, 1.0]))
    assert ratios[:8] == [None] * min(8, len(norms))
    if len(norms) > 8:
        assert ratios[8] is not None
        before = list(np.log(norms[:8]))  # none was winsorised: they were too few for a fence
        assert math.log(ratios[8]) == pytest.approx(math.log(norms[8]) - np.median(before), abs=1e-9)


@given(st.lists(st.floats(), min_size=1, max_size=100))
@settings(deadline=None)
def test_baseline_is_numpys_median_and_scipys_iqr(values: list[float]) -> None:
    """The frozen pair is of the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    baseline = Baseline(len(values))
    for value in values:
        baseline.update(loss=value)
    if not finite:
        assert baseline.frozen == {}
    elif max(map(abs, finite)) < 1e300:
        median, iqr = baseline.frozen["loss"]
        assert median == pytest.approx(np.median(finite), rel=1e-9)
        assert iqr == pytest.approx(stats.iqr(finite), rel=1e-9, abs=1e-9 * max(map(abs, finite)))
