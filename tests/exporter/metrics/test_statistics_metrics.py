"""Statistics as metrics: evaluations, season, restarts, restored state, utilisation and phases."""

from __future__ import annotations

import gc
import json
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.exporter.conftest import sample, samples
from tests.exporter.metrics.test_aggregator import build, step

from trainswitch.intervention.commands import RESULTS
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.recording.records import Kind
from trainswitch.recording.ring import StepRing


def evaluate(ring: StepRing, **metrics: float) -> None:
    """Write one evaluation."""
    for name, value in metrics.items():
        ring.append(Kind.EVALUATION, 0, (value,), label=name)


def test_evaluations_are_two_windows_a_best_and_a_direction() -> None:
    """What a rule needs for Welch's test, and to know which way is worse."""
    ring, aggregator = build(statistics={"recent_evaluations": 2, "reference_evaluations": 3})
    for value in (9.0, 1.0, 2.0, 3.0, 5.0, 6.0):
        evaluate(ring, val_loss=value, accuracy=value)
    text = aggregator.render()
    expected = {
        "recent": {"mean": 5.5, "variance": 0.5, "count": 2.0},
        "reference": {"mean": 2.0, "variance": 1.0, "count": 3.0},
    }
    for window, moments in expected.items():
        for stat, value in moments.items():
            found = sample(text, "train_eval_window", metric="val_loss", window=window, stat=stat)
            assert found == pytest.approx(value), (window, stat)
    assert sample(text, "train_eval_best", metric="val_loss") == 1.0
    assert sample(text, "train_eval_best", metric="accuracy") == 9.0
    assert sample(text, "train_eval_direction", metric="val_loss") == -1.0
    assert sample(text, "train_eval_direction", metric="accuracy") == 1.0


def test_an_applied_change_of_the_rate_begins_a_new_trial_of_the_evaluations() -> None:
    """What made the alert fire is not held against the lower rate: the streaks end and count anew."""
    ring, aggregator = build()
    for value in (1.0, 2.0, 2.0, 2.0):
        evaluate(ring, val_loss=value)
    streak = {"metric": "val_loss", "side": "upper", "unit": "evaluations", "length": "3"}
    assert sample(aggregator.render(), "train_eval_streak", **streak) == 2.0
    ring.append(Kind.COMMAND, 0, (0.1, float(RESULTS.index("refused"))), label="reduce_lr")
    assert sample(aggregator.render(), "train_eval_streak", **streak) == 2.0
    ring.append(Kind.COMMAND, 0, (0.1, float(RESULTS.index("applied"))), label="reduce_lr")
    evaluate(ring, val_loss=2.0)
    text = aggregator.render()
    assert not any(name == "train_eval_streak" for name, _ in samples(text))
    assert sample(text, "train_eval_best", metric="val_loss") == 1.0


def test_evaluations_are_shown_with_their_noise_and_the_training_loss_before_them() -> None:
    """What rules need to tell overfitting from noise."""
    ring, aggregator = build(statistics={"recent_evaluations": 2, "reference_evaluations": 2})
    for number, value in enumerate((4.0, 3.0, 2.0, 1.0), start=1):
        step(ring, number, value)
        evaluate(ring, val_loss=5.0 + number % 2)
    text = aggregator.render()
    assert sample(text, "train_eval_training_loss", metric="val_loss", window="recent") == 1.5
    assert sample(text, "train_eval_training_loss", metric="val_loss", window="reference") == 3.5
    assert sample(text, "train_eval_noise", metric="val_loss") == pytest.approx(0.5**0.5)


def test_learning_rates_are_shown_with_their_jumps_and_how_long_they_stood_still() -> None:
    """A jump is counted by its ratio; a phase of training begins the count of unchanged steps anew."""
    ring, aggregator = build(phases=[{"name": "warmup", "until_step": 6}, {"name": "main"}])
    for number, rate in enumerate((0.0, 0.1, 0.1, 2.0), start=1):
        step(ring, number, None, rates=[rate])
    text = aggregator.render()
    assert sample(text, "train_learning_rate_ratio_count") == 1
    assert sample(text, "train_learning_rate_ratio_bucket", le="12.0") == 0
    assert sample(text, "train_learning_rate_ratio_bucket", le="120.0") == 1
    assert sample(text, "train_learning_rate_unchanged_steps") == 0
    step(ring, 5, None, rates=[2.0])
    step(ring, 6, None, rates=[2.0])
    assert sample(aggregator.render(), "train_learning_rate_unchanged_steps") == 2
    step(ring, 7, None, rates=[2.0])
    assert sample(aggregator.render(), "train_learning_rate_unchanged_steps") == 1


def test_the_interval_of_checkpoints_is_that_of_the_settings() -> None:
    """A rule can tell from it that one is overdue; ranks other than 0 save none."""
    ring, other = build(checkpoint={"interval_steps": 250})
    first = Aggregator(StepRing.private({**ring.reader().meta, "rank": 0}, 64).reader(), "1.2.3")
    assert sample(first.render(), "train_checkpoint_interval_steps") == 250
    assert sample(other.render(), "train_checkpoint_interval_steps") is None


def test_an_evaluation_that_is_not_finite_is_counted_and_not_averaged() -> None:
    """The gauge shows it, the counter counts it, and it is no trouble of the training's numerics."""
    ring, aggregator = build()
    evaluate(ring, accuracy=0.5)
    assert sample(aggregator.render(), "train_eval_nonfinite_total", metric="accuracy") == 0
    evaluate(ring, accuracy=math.nan)
    evaluate(ring, accuracy=math.inf)
    text = aggregator.render()
    assert sample(text, "train_eval") is None
    assert sample(text, "train_eval", metric="accuracy") == math.inf
    assert sample(text, "train_eval_nonfinite_total", metric="accuracy") == 2
    assert sample(text, "train_evals_total", metric="accuracy") == 3
    assert sample(text, "train_eval_window", metric="accuracy", window="recent", stat="mean") == 0.5
    assert sample(text, "train_nonfinite_total", source="loss") == 0


def test_one_metric_too_many_has_no_series(caplog: pytest.LogCaptureFixture) -> None:
    """Metric names come from the loop; their number is bounded, and what is refused is counted."""
    ring, aggregator = build()
    for number in range(300):
        evaluate(ring, **{f"metric_{number}": 1.0})
    text = aggregator.render()
    assert sum(name == "train_eval" for name, _ in samples(text)) == 256
    assert sample(text, "trainswitch_records_dropped_total") == 44
    assert "without step numbers" in caplog.text


def test_the_centre_line_of_a_seasonal_loss_is_the_phases_own() -> None:
    """train_loss_center moves with the phase, and a step that fits its phase does not deviate."""
    ring, aggregator = build(statistics={"season_steps": 10})
    for number in range(400):
        step(ring, number, (5.0 if number % 10 == 0 else 2.0) + 0.01 * (number % 3))
    assert sample(aggregator.render(), "train_loss_center") == pytest.approx(2.0, abs=0.05)
    step(ring, 400, 5.0)
    text = aggregator.render()
    assert sample(text, "train_loss_center") == pytest.approx(5.0, abs=0.05)
    count = sample(text, "train_step_loss_deviation_sigmas_count") or 0
    within = sample(text, "train_step_loss_deviation_sigmas_bucket", le="6.0") or 0
    assert count - within <= 4  # the first season, in which nothing was known


def beyond(text: bytes, metric: str, le: str, **labels: str) -> float:
    """Observations of a histogram above a bound."""
    count = sample(text, f"{metric}_count", **labels)
    bucket = sample(text, f"{metric}_bucket", le=le, **labels)
    assert count is not None
    assert bucket is not None
    return count - bucket


def test_steps_that_stand_out_are_counted_alone_and_as_three_of_five_after_the_warm_up() -> None:
    """In warm-up nothing is counted; a spike is one step; what lasts is there from its third step on."""
    ring, aggregator = build(statistics={"warmup_steps": 40})
    for number in range(1, 41):
        high = 15 <= number < 20
        step(ring, number, 9.0 if high else 2.0 + 0.01 * (number % 5), 90.0 if high else 1.0)
    text = aggregator.render()
    for name in ("train_step_loss_excess_sigmas", "train_step_grad_norm_excess_ratio"):
        assert sample(text, f"{name}_count", steps="1") == 0
        assert sample(text, f"{name}_count", steps="3") == 0
    for number in range(41, 101):
        high = number == 60 or number >= 97
        step(ring, number, 9.0 if high else 2.0 + 0.01 * (number % 5), 90.0 if high else 1.0)
    text = aggregator.render()
    assert beyond(text, "train_step_loss_excess_sigmas", "6.0", steps="1") == 5
    assert beyond(text, "train_step_loss_excess_sigmas", "6.0", steps="3") == 2
    assert beyond(text, "train_step_grad_norm_excess_ratio", "10.0", steps="1") == 5
    assert beyond(text, "train_step_grad_norm_excess_ratio", "10.0", steps="3") == 2
    assert (sample(text, "train_loss_excess_sigmas") or 0) > 6
    assert sample(text, "train_grad_norm_excess_ratio") == pytest.approx(90.0)
    assert sample(text, "train_loss_level", stat="best") == pytest.approx(2.02)


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.RESTORED])
def test_what_lasts_ends_with_a_pause_and_with_a_rollback(kind: Kind) -> None:
    """While nothing happens an alert must be able to end, and what comes next is judged by itself."""
    ring, aggregator = build(statistics={"warmup_steps": 20})
    for number in range(1, 41):
        step(ring, number, 9.0 if number > 36 else 2.0 + 0.01 * (number % 5), 90.0 if number > 36 else 1.0)
    lasting = ("train_loss_excess_sigmas", "train_loss_rise_ratio", "train_grad_norm_excess_ratio")
    text = aggregator.render()
    assert all((sample(text, name) or 0) > 3 for name in lasting)
    ring.append(kind, 30, (), label="paused")
    text = aggregator.render()
    assert [sample(text, name) for name in lasting] == [0, 0, 0]
    step(ring, 41, 9.0, 90.0)
    step(ring, 42, 9.0, 90.0)
    text = aggregator.render()
    assert [sample(text, name) for name in lasting] == [0, 0, 0]


def test_a_loss_that_rises_over_its_first_is_counted_in_warm_up() -> None:
    """A fine-tuning that breaks at its second step is told of at its fourth."""
    ring, aggregator = build()
    for number, loss in enumerate((1.6, 11.8, 11.6, 10.4, 10.4), start=1):
        step(ring, number, loss)
    text = aggregator.render()
    assert beyond(text, "train_step_loss_rise_ratio", "3.0") == 2
    assert sample(text, "train_baseline_ready") == 0


def test_the_course_of_loss_and_gradients_is_shown() -> None:
    """Norms half as high again show as a climb of 1.5, a loss that jumps as a negative autocorrelation."""
    ring, aggregator = build()
    for number in range(1, 321):
        assert sample(aggregator.render(), "train_grad_norm_climb_ratio") is None
        step(ring, number, 2.0 + (-1) ** number * 0.1, 2.0 if number <= 256 else 3.0)
    text = aggregator.render()
    assert sample(text, "train_grad_norm_climb_ratio") == pytest.approx(1.5)
    assert (sample(text, "train_loss_autocorrelation") or 0) < -0.9


def test_a_step_counter_that_jumps_back_is_a_new_baseline_and_counted() -> None:
    """Another run in the same process has its own warm-up; a gauge of the old one says nothing any more."""
    ring, aggregator = build(statistics={"warmup_steps": 10})
    for number in range(1, 21):
        step(ring, number, 2.0)
        evaluate(ring, accuracy=0.9)
    assert sample(aggregator.render(), "train_baseline_ready") == 1.0
    assert sample(aggregator.render(), "train_baseline_restarts_total") == 0
    for number in range(1, 4):
        step(ring, number, 7.0)
    text = aggregator.render()
    assert sample(text, "train_baseline_restarts_total") == 1
    assert sample(text, "train_baseline_ready") == 0.0
    assert math.isnan(sample(text, "train_eval_best", metric="accuracy") or 0.0)
    for number in range(4, 11):
        step(ring, number, 7.0)
    text = aggregator.render()
    assert sample(text, "train_baseline_ready") == 1.0
    assert sample(text, "train_baseline", signal="loss", stat="median") == 7.0


def test_a_rollback_is_no_restart() -> None:
    """After a RESTORED record the counter may stand lower, and the statistics go on."""
    ring, aggregator = build(statistics={"warmup_steps": 10})
    for number in range(1, 21):
        step(ring, number, 2.0)
    ring.append(Kind.RESTORED, 12)
    text = aggregator.render()
    assert sample(text, "train_step") == 12
    step(ring, 13, 2.0)
    text = aggregator.render()
    assert sample(text, "train_baseline_restarts_total") == 0
    assert sample(text, "train_baseline_ready") == 1.0


def test_a_loaded_state_shows_at_once() -> None:
    """Another aggregator that takes the state in exports the same statistics, before its first step."""
    ring, aggregator = build(statistics={"warmup_steps": 10})
    for number in range(1, 51):
        step(ring, number, 2.0 + 0.1 * (number % 5), 1.0 + 0.1 * (number % 7))
        evaluate(ring, accuracy=0.01 * number)
    state = json.loads(json.dumps(aggregator.statistics_state(), allow_nan=False))
    before = samples(aggregator.render())
    _, other = build(statistics={"warmup_steps": 10})
    other.load_statistics(state)
    after = samples(other.render())
    shown = {
        key: value
        for key, value in before.items()
        if key[0].startswith(
            ("train_baseline_ready", "train_eval_window", "train_eval_best", "train_grad_norm_q")
        )
        or key[0] in ("train_baseline", "train_loss_center", "train_loss_sigma", "train_loss_slope")
    }
    assert len(shown) > 15
    assert {key: after.get(key) for key in shown} == shown


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    """The statistics stay as they are, and the caller is told."""
    ring, aggregator = build(statistics={"warmup_steps": 10})
    for number in range(1, 21):
        step(ring, number, 2.0)
    with pytest.raises(ValueError, match="version 99"):
        aggregator.load_statistics({"version": 99})
    assert sample(aggregator.render(), "train_baseline_ready") == 1.0


def test_phases_do_not_overlap() -> None:
    """The wait for data is counted as such and not as training: phases add up to the time that passed."""
    ring, aggregator = build()
    for number in range(1, 11):
        step(ring, number, 2.0, seconds=0.5, data_wait=0.2)
    ring.append(Kind.PHASE, 0, (3.0,), label="evaluate")
    text = aggregator.render()
    phases = {
        dict(labels)["phase"]: value
        for (name, labels), value in samples(text).items()
        if name == "train_phase_seconds_total"
    }
    assert phases == pytest.approx(
        {"train": 3.0, "data": 2.0, "evaluate": 3.0, "checkpoint": 0.0, "paused": 0.0}
    )
    assert sample(text, "train_step_seconds_sum") == pytest.approx(5.0)


def test_utilisation_is_exported_where_there_is_a_peak() -> None:
    """64 tokens of 1e6 FLOPs in 0.1 s on 1e9 FLOP/s are 0.64; without a peak there is no series."""
    ring, aggregator = build(throughput={"peak_flops": 1e9, "flops_per_token": 1e6})
    for number in range(1, 11):
        step(ring, number, 2.0)
    assert sample(aggregator.render(), "train_model_flops_utilization_ratio") == pytest.approx(0.64)
    ring, aggregator = build()
    step(ring, 1, 2.0)
    assert sample(aggregator.render(), "train_model_flops_utilization_ratio") is None


awkward = st.floats() | st.sampled_from([0.0, -1.0, 1e-30, -1e-30, 1e30, -1e30, 2.0, math.nan, math.inf])


@given(
    st.lists(
        st.tuples(
            st.none() | awkward, st.none() | awkward,
            st.sampled_from([1e-3, 600.0, math.nan, math.inf, -1.0]),
            st.integers(0, 40), st.booleans(), awkward,
        ),
        max_size=60,
    )
)  # fmt: skip
@settings(deadline=None, max_examples=50)
def test_no_series_of_steps_breaks_the_aggregator(
    records: list[tuple[float | None, float | None, float, int, bool, float]],
) -> None:
    """NaN, infinities, jumps, negatives, steps of 1 ms and of 10 minutes, rewinds: each record is taken.

    Counters and histograms stay numbers, and the state can be saved and loaded.
    """
    ring, aggregator = build(
        statistics={"warmup_steps": 5, "season_steps": 6, "loss_span_steps": 5, "trend_window_steps": 8},
        throughput={"peak_flops": 1e12, "flops_per_token": 1e6},
    )
    for loss, norm, seconds, back, announced, score in records:
        if announced:
            ring.append(Kind.RESTORED, back)
        step(ring, back, loss, norm, seconds=seconds)
        evaluate(ring, score=score)
    text = aggregator.render()
    assert sample(text, "trainswitch_records_dropped_total") == 0
    assert sample(text, "train_steps_total") == len(records)
    for (name, labels), value in samples(text).items():
        if name.endswith(("_total", "_count", "_bucket", "_sum")):
            assert math.isfinite(value), (name, labels)
    aggregator.load_statistics(json.loads(json.dumps(aggregator.statistics_state(), allow_nan=False)))
    aggregator.render()


def test_a_day_of_steps_leaves_memory_and_files_as_they_were(tmp_path: Path) -> None:
    """With steps, spikes, evaluations, checkpoints, commands and rollbacks going on, nothing grows.

    After the windows are full, tens of thousands of further records leave the number of live memory blocks,
    the size of the state, the series and the ring's file where they were.
    """
    reference, _ = build(statistics={"season_steps": 500})
    ring = StepRing.create(reference.meta, 4096, tmp_path)
    aggregator = Aggregator(ring.reader(), "1.2.3")

    def run(first: int, steps: int) -> tuple[int, int, int, int]:
        for number in range(first, first + steps):
            loss = math.nan if number % 997 == 0 else 2.0 + math.sin(number) + 50.0 * (number % 503 == 0)
            step(ring, number, loss, 1.0 + 0.5 * math.cos(number), loss_scale=1024.0, epoch=number / 500)
            if number % 100 == 0:
                evaluate(ring, val_loss=loss, accuracy=math.cos(number))
                ring.append(Kind.CHECKPOINT, 0, (float(number), 1000.0), label="latest")
                ring.append(Kind.COMMAND, 0, (0.5, float(RESULTS.index("applied"))), label="pause")
                ring.append(Kind.PHASE, 0, (0.5,), label="paused")
            if number % 2000 == 1999:
                ring.append(Kind.RESTORED, number)
            if number % 1000 == 0:
                aggregator.render()
        text = aggregator.render()
        gc.collect()
        state = len(json.dumps(aggregator.statistics_state()))
        gc.collect()
        return (
            sys.getallocatedblocks(),
            state,
            len(samples(text)),
            sum(p.stat().st_size for p in tmp_path.iterdir()),
        )

    run(0, 5000)
    blocks, state, series, size = run(5000, 1000)
    later_blocks, later_state, later_series, later_size = run(6000, 20_000)
    ring.close()
    assert later_blocks - blocks < 500
    assert later_state < state * 1.02
    assert (later_series, later_size) == (series, size)
