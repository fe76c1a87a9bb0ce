"""From records to samples."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.exporter.conftest import sample, samples

from trainswitch.config import MonitorConfig
from trainswitch.metrics import aggregator as aggregator_module
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.metrics.catalogue import CATALOGUE
from trainswitch.recording.records import Kind, Record
from trainswitch.recording.ring import StepRing
from trainswitch.recording.steps import Step, StepRecorder


def build(**config: Any) -> tuple[StepRing, Aggregator]:
    """A private ring and its aggregator."""
    settings = MonitorConfig.model_validate(config)
    meta = {
        "run": "r",
        "rank": 3,
        "node": "n",
        "framework": "none",
        "world_size": 4,
        "started_at": 5.0,
        "config": settings.model_dump(mode="json"),
    }
    ring = StepRing.private(meta, 4096)
    return ring, Aggregator(ring.reader(), "1.2.3")


def step(ring: StepRing, number: int, loss: float | None, norm: float | None = None, **other: Any) -> None:
    """Write one step."""
    fields: dict[str, Any] = {
        "number": number,
        "ended_at": 1000.0 + number,
        "seconds": 0.1,
        "data_wait": 0.01,
        "samples": 2.0,
        "tokens": 64.0,
        "epoch": None,
        "loss_scale": None,
        "skipped": "",
        "clipped_at": None,
        "rates": [0.1],
        "overhead": 0.0,
        **other,
    }
    StepRecorder(ring, lambda _: None).write(Step(**fields), loss, norm)


def test_every_series_has_run_and_rank_and_a_name_of_the_catalogue() -> None:
    """Nothing is exported that the catalogue does not list, and every series says whose it is."""
    ring, aggregator = build()
    for number in range(30):
        step(ring, number, 2.0 + number % 3, 1.0 + number % 2)
    names = {metric.name.removesuffix("_total") for metric in CATALOGUE}
    for family in text_string_to_metric_families(aggregator.render().decode()):
        assert family.name.removesuffix("_total") in names
        for one in family.samples:
            assert one.labels["run"] == "r"
            assert one.labels["rank"] == "3"
            assert not one.name.endswith("_created")


def test_windows_of_hundreds_of_steps_are_worked_out_once_in_a_while() -> None:
    """A scrape a few steps after the last one shows the new loss, and the old trend; 16 steps renew it."""
    ring, aggregator = build()
    for number in range(1, 41):
        step(ring, number, 2.0, 1.0)
    aggregator.render()
    for number in range(41, 56):
        step(ring, number, 2.0 + number, 1.0)
    text = aggregator.render()
    assert sample(text, "train_loss") == 57.0
    assert sample(text, "train_loss_window", stat="max") == 2.0
    step(ring, 56, 3.0, 1.0)
    assert sample(aggregator.render(), "train_loss_window", stat="max") == 57.0


def test_counters_and_histograms_are_there_before_the_first_step() -> None:
    """increase() cannot see the first increment of a series that did not exist, so all exist at once."""
    _, aggregator = build()
    text = aggregator.render()
    assert sample(text, "train_nonfinite_total", source="loss") == 0.0
    assert sample(text, "train_nonfinite_total", source="grad") == 0.0
    assert sample(text, "train_step_seconds_count") == 0.0
    assert sample(text, "trainswitch_commands_total", action="pause", result="applied") == 0.0
    assert sample(text, "train_steps_total") == 0.0


def test_every_step_is_counted_however_many_lie_between_two_scrapes() -> None:
    """A thousand steps between two looks add up in counters and histograms."""
    ring, aggregator = build()
    for number in range(1, 1001):
        step(ring, number, 1.0, 0.5)
    text = aggregator.render()
    assert sample(text, "train_steps_total") == 1000
    assert sample(text, "train_step") == 1000
    assert sample(text, "train_samples_total") == 2000
    assert sample(text, "train_tokens_total") == 64000
    assert sample(text, "train_step_grad_norm_count") == 1000
    assert sample(text, "train_last_step_timestamp_seconds") == 2000.0


def test_a_nan_is_counted_and_poisons_nothing() -> None:
    """The gauge shows NaN; the counter counts it; histograms, sums and the chart stay numbers."""
    ring, aggregator = build()
    for number in range(50):
        step(ring, number, 2.0, 1.0)
    step(ring, 50, math.nan, math.inf)
    text = aggregator.render()
    assert sample(text, "train_nonfinite_total", source="loss") == 1
    assert sample(text, "train_nonfinite_total", source="grad") == 1
    loss = sample(text, "train_loss")
    assert loss is not None
    assert math.isnan(loss)
    poisoned = {name for (name, _), value in samples(text).items() if math.isnan(value)}
    assert poisoned == {"train_loss"}


def test_a_missing_loss_is_not_a_nan() -> None:
    """A rank without a loss has no loss series and no non-finite count."""
    ring, aggregator = build()
    step(ring, 1, None, 1.0)
    text = aggregator.render()
    assert sample(text, "train_loss") is None
    assert sample(text, "train_nonfinite_total", source="loss") == 0


def test_deviations_are_signed_and_their_histogram_has_no_sum() -> None:
    """A histogram with negative bounds must not have a _sum that goes down."""
    ring, aggregator = build()
    for number in range(100):
        step(ring, number, 2.0 + 0.01 * (number % 7))
    step(ring, 100, 20.0)
    text = aggregator.render()
    beyond = sample(text, "train_step_loss_deviation_sigmas_count") or 0
    within = sample(text, "train_step_loss_deviation_sigmas_bucket", le="30.0") or 0
    assert beyond - within == 1
    assert sample(text, "train_step_loss_deviation_sigmas_sum") is None


def test_limits_and_baseline_are_metrics() -> None:
    """A run carries its own thresholds; the baseline appears when the warm-up ends."""
    ring, aggregator = build(
        limits=[{"signal": "grad_norm", "severity": "critical", "value": 100.0}],
        statistics={"warmup_steps": 10},
    )
    labels = {"signal": "grad_norm", "bound": "upper", "severity": "critical"}
    assert sample(aggregator.render(), "train_limit", **labels) == 100.0
    assert sample(aggregator.render(), "train_baseline_ready") == 0.0
    for number in range(10):
        step(ring, number, 3.0, float(number))
    text = aggregator.render()
    assert sample(text, "train_baseline_ready") == 1.0
    assert sample(text, "train_baseline", signal="loss", stat="median") == 3.0
    assert sample(text, "train_baseline", signal="grad_norm", stat="median") == 4.5


def test_more_learning_rates_than_fit_into_a_record_are_not_dropped() -> None:
    """Parameter groups beyond the record's places travel in records of their own."""
    ring, aggregator = build()
    step(ring, 1, 1.0, rates=[float(group) for group in range(12)])
    text = aggregator.render()
    rates = [sample(text, "train_learning_rate", group=str(group)) for group in range(12)]
    assert rates == [float(group) for group in range(12)]


def test_exactly_one_state_is_one() -> None:
    """train_run_state is a state set."""
    ring, aggregator = build()
    ring.append(Kind.STATE, 0, label="paused")
    states = {
        dict(labels)["state"]: value
        for (name, labels), value in samples(aggregator.render()).items()
        if name == "train_run_state"
    }
    assert states.pop("paused") == 1.0
    assert set(states.values()) == {0.0}


def test_clips_skips_and_scale_are_recorded() -> None:
    """What step() is told about clipping, skipped updates and the loss scale arrives."""
    ring, aggregator = build()
    step(ring, 1, 1.0, 5.0, clipped_at=1.0, skipped="loss_scale", loss_scale=1024.0, epoch=1.5)
    step(ring, 2, 1.0, 0.5, clipped_at=1.0)
    text = aggregator.render()
    assert sample(text, "train_grad_clips_total") == 1
    assert sample(text, "train_skipped_steps_total", reason="loss_scale") == 1
    assert sample(text, "train_loss_scale") == 1024.0
    assert sample(text, "train_epoch") == 1.5


def test_an_overflow_that_mixed_precision_skips_is_no_trouble() -> None:
    """An infinite norm of a step that the loss scaler skipped is not counted as non-finite."""
    ring, aggregator = build()
    step(ring, 1, 1.0, math.inf, skipped="loss_scale")
    text = aggregator.render()
    assert sample(text, "train_nonfinite_total", source="grad") == 0
    assert sample(text, "train_skipped_steps_total", reason="loss_scale") == 1


def test_a_record_of_an_unknown_kind_is_counted_and_the_next_is_taken(caplog: Any) -> None:
    """One odd record does not end the monitoring."""
    ring, aggregator = build()
    ring.append(99, 0)
    step(ring, 1, 1.0)
    text = aggregator.render()
    assert sample(text, "trainswitch_records_dropped_total") == 1
    assert sample(text, "train_steps_total") == 1
    assert "was not taken in" in caplog.text


def test_steps_that_would_overrun_the_ring_are_taken_in_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """However rarely it wakes otherwise, and whoever saw how fast they come: here a scrape did."""
    monkeypatch.setattr(aggregator_module, "DRAIN_INTERVAL_SECONDS", 600.0)
    ring, _ = build()
    heard = threading.Event()

    def hear(record: Record) -> None:
        if record.step == 2000:
            heard.set()

    aggregator = Aggregator(ring.reader(), "1.2.3", on_record=hear)
    for number in range(2000):
        step(ring, number, 1.0)
    aggregator.render()
    step(ring, 2000, 1.0)
    aggregator.start()
    assert heard.wait(60.0)
    aggregator.close()
