"""Evaluation windows against SciPy, noise, training losses, the best value, and directions."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from trainswitch.statistics.evaluations import (
    MOST_METRICS,
    Evaluations,
    default_direction,
    evaluation_noise,
    moments,
)

scaled = st.floats(-1e30, 1e30).filter(lambda value: value == 0.0 or abs(value) >= 1e-30)


def filled(values: list[float], recent: int = 3, reference: int = 5) -> Evaluations:
    """Evaluations of one metric."""
    evaluations = Evaluations(recent, reference, {})
    for value in values:
        evaluations.update("score", value)
    return evaluations


@given(st.lists(scaled, min_size=2, max_size=30))
def test_moments_are_numpys(values: list[float]) -> None:
    """Mean and variance (n - 1) equal NumPy's, over sixty orders of magnitude."""
    found = moments(values)
    size = max(map(abs, values))
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-12 * size)
    assert found.variance == pytest.approx(np.var(values, ddof=1), rel=1e-9, abs=1e-12 * size**2)
    assert found.count == len(values)


@given(st.lists(st.floats(-100, 100), min_size=9, max_size=40))
def test_the_windows_are_what_welchs_test_needs(values: list[float]) -> None:
    """Welch's t from the exported moments is SciPy's t of the last values against those before them."""
    evaluations = filled(values)
    recent, reference = values[-3:], values[-8:-3]
    assume(np.ptp(recent) > 1e-3 and np.ptp(reference) > 1e-3)
    ours = evaluations.windows("score")
    t, _ = stats.ttest_ind_from_stats(
        *(ours["recent"].mean, math.sqrt(ours["recent"].variance), ours["recent"].count),
        *(ours["reference"].mean, ours["reference"].variance ** 0.5, ours["reference"].count),
        equal_var=False,
    )
    assert t == pytest.approx(stats.ttest_ind(recent, reference, equal_var=False).statistic, rel=1e-6)


@given(st.lists(st.floats(), max_size=60))
def test_what_is_not_finite_is_left_out(values: list[float]) -> None:
    """Windows and best are those of the finite values alone."""
    finite = [value for value in values if math.isfinite(value)]
    evaluations, expected = filled(values), filled(finite)
    if values and finite:
        for window in ("recent", "reference"):
            assert repr(evaluations.windows("score")[window]) == repr(expected.windows("score")[window])
        assert evaluations.best("score") == max(finite)


def test_the_noise_is_the_scatter_and_not_the_trend() -> None:
    """Of white noise it is the standard deviation; a trend of ten sigmas in all adds little to it."""
    noise = np.random.default_rng(0).normal(0.0, 0.5, 4000)
    assert evaluation_noise(list(noise)) == pytest.approx(0.5, rel=0.03)
    assert evaluation_noise(list(noise + np.linspace(0.0, 5.0, 4000))) == pytest.approx(0.5, rel=0.03)
    assert math.isnan(evaluation_noise([1.0, 2.0]))


def test_an_evaluation_is_kept_with_the_mean_training_loss_before_it() -> None:
    """Each with the steps since the evaluation before, once for all metrics of one evaluation."""
    evaluations = Evaluations(2, 2, {})
    for losses in ([9.0], [4.0, 6.0], [3.0], [1.0, 2.0, 3.0]):
        for loss in losses:
            evaluations.take_loss(loss)
        evaluations.update("val_loss", 1.0)
        evaluations.update("accuracy", 0.5)
    assert evaluations.training_losses("val_loss") == {"recent": 2.5, "reference": 7.0}
    assert evaluations.training_losses("accuracy") == evaluations.training_losses("val_loss")


def test_a_training_loss_that_is_not_known_is_not_averaged() -> None:
    """A window with an evaluation before the first step has no mean: NaN, which no rule believes."""
    evaluations = Evaluations(2, 2, {})
    evaluations.update("val_loss", 1.0)
    evaluations.take_loss(3.0)
    evaluations.update("val_loss", 1.0)
    assert math.isnan(evaluations.training_losses("val_loss")["recent"])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_no_finite_training_loss_breaks_the_means(losses: list[float]) -> None:
    """However large the losses of a diverging run are, the evaluations go on."""
    evaluations = Evaluations(2, 2, {})
    for loss in losses:
        evaluations.take_loss(loss)
        evaluations.update("val_loss", loss)
    assert set(evaluations.training_losses("val_loss")) == {"recent", "reference"}
    assert evaluations.noise("val_loss") >= 0.0 or len(losses) < 3


def test_few_evaluations_have_no_variance() -> None:
    """Of one value there is no variance, and of none no mean: NaN, not a zero that a rule would believe."""
    windows = filled([0.5]).windows("score")
    assert (windows["recent"].mean, windows["recent"].count) == (0.5, 1)
    assert math.isnan(windows["recent"].variance)
    assert math.isnan(windows["reference"].mean)
    assert windows["reference"].count == 0


@pytest.mark.parametrize(
    ("name", "direction"),
    [("val_loss", "lower"), ("perplexity", "lower"), ("val_ppl", "lower"), ("WER", "lower"),
     ("rmse", "lower"), ("top1_error", "lower"), ("test/mae", "lower"),
     ("val_accuracy", "higher"), ("f1", "higher"),
     ("bleu", "higher"), ("auroc", "higher"), ("maepole", "higher")],
)  # fmt: skip
def test_direction_follows_the_name(name: str, direction: str) -> None:
    """Losses and errors are better when lower; shorthands count as words only."""
    assert default_direction(name) == direction


def test_direction_can_be_set() -> None:
    """The setting goes before the name, and the best follows it."""
    evaluations = Evaluations(2, 2, {"f1": "lower"})
    for value in (3.0, 1.0, 2.0):
        evaluations.update("f1", value)
        evaluations.update("accuracy", value)
    assert (evaluations.best("f1"), evaluations.best("accuracy")) == (1.0, 3.0)


def test_the_number_of_metrics_is_bounded() -> None:
    """A loop that puts step numbers into names is told so, and the metrics it had go on."""
    evaluations = Evaluations(2, 2, {})
    for number in range(MOST_METRICS):
        evaluations.update(f"m{number}", 1.0)
    with pytest.raises(ValueError, match="without step numbers"):
        evaluations.update("one_more", 1.0)
    evaluations.update("m0", 2.0)
    assert evaluations.best("m0") == 2.0


def test_the_state_survives_json() -> None:
    """All that was kept is the same after a round trip, also for a metric that had no finite value."""
    evaluations = filled([0.1 * number for number in range(10)])
    for number in range(10, 20):
        evaluations.take_loss(2.0)
        evaluations.update("score", 0.1 * number)
    evaluations.update("broken", math.nan)
    loaded = Evaluations(3, 5, {})
    loaded.load_state_dict(json.loads(json.dumps(evaluations.state_dict(), allow_nan=False)))
    assert loaded.windows("score") == evaluations.windows("score")
    assert loaded.best("score") == evaluations.best("score")
    assert loaded.training_losses("score") == {"recent": 2.0, "reference": 2.0}
    assert loaded.noise("score") == evaluations.noise("score")
    assert math.isnan(loaded.best("broken"))
