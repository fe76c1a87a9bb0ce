"""Resuming a run, and what its statistics know afterwards; what each part of a step's time is counted as."""

from __future__ import annotations

import math
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exporter.conftest import MonitorFactory, sample
from tests.exporter.test_monitor import Loop, scrape, settle

from trainswitch.errors import ActionRefused, CheckpointError, ConfigError

SETTINGS: dict[str, Any] = {
    "checkpoint": {"interval_steps": 10, "probation_steps": 5},
    "statistics": {"warmup_steps": 8},
}


def test_a_resumed_run_goes_on_bit_by_bit_and_does_not_start_blind(
    home: Path, new_monitor: MonitorFactory
) -> None:
    """Step, weights, optimizer, learning-rate factor and statistics are those of the stable checkpoint."""
    first = Loop(home, new_monitor, **SETTINGS)
    first.train(1)
    first.command("reduce_lr", params={"factor": 0.5})
    first.train(30)
    settle(first)
    stable = [e.step for e in first.monitor._store.entries() if e.kind == "stable"][-1]  # type: ignore[union-attr]
    first.monitor.close()

    second = Loop(home, new_monitor, **SETTINGS)
    assert second.monitor.restore() == stable
    assert second.monitor.current_step == stable
    text = scrape(second.monitor)
    assert sample(text, "train_step") == stable
    assert sample(text, "train_baseline_ready") == 1.0
    assert sample(text, "train_baseline", signal="loss", stat="median") is not None
    assert sample(text, "train_loss_sigma") is not None
    losses = second.train(3)
    text = scrape(second.monitor)
    assert sample(text, "train_step_loss_deviation_sigmas_count") == 3  # judged from the first step on
    assert sample(text, "train_learning_rate", group="0") == pytest.approx(0.005)
    assert sample(text, "train_baseline_restarts_total") == 0
    assert sample(text, "train_step_seconds_count") == 2  # the first one compiles
    second.monitor.close()

    third = Loop(home, new_monitor, **SETTINGS)
    assert third.monitor.restore(stable) == stable
    assert third.train(3) == losses


def test_a_new_run_has_nothing_to_restore(loop_without_checkpoints: Loop) -> None:
    """Without a checkpoint the answer is None, and the run begins at step 0."""
    assert loop_without_checkpoints.monitor.restore() is None
    loop_without_checkpoints.train(1)
    assert loop_without_checkpoints.monitor.current_step == 1


@pytest.fixture
def loop_without_checkpoints(home: Path, new_monitor: MonitorFactory) -> Loop:
    """A run that has saved nothing."""
    return Loop(home, new_monitor, checkpoint={"interval_steps": 0})


def test_a_checkpoint_that_is_not_there_is_an_error(loop_without_checkpoints: Loop) -> None:
    """Whoever asks for a step does not want to begin from the start."""
    with pytest.raises(CheckpointError, match="no checkpoint of step 7"):
        loop_without_checkpoints.monitor.restore(7)


def test_restore_needs_something_to_restore(new_monitor: MonitorFactory) -> None:
    """Nothing attached is refused with the way out."""
    with pytest.raises(ActionRefused, match="attach a model"):
        new_monitor().restore()


def test_a_rollback_takes_the_statistics_back_and_goes_on(home: Path, new_monitor: MonitorFactory) -> None:
    """The trouble that led to a rollback is not in the statistics that judge what comes after it."""
    loop = Loop(home, new_monitor, **SETTINGS)
    settle(loop)
    before = loop.monitor._endpoint.statistics_state()
    for _ in range(3):
        loop.monitor.step(1e6, grad_norm=1e6)
    loop.monitor.evaluate(val_loss=1e6)
    loop.command("rollback")
    assert loop.answered().result == "applied"
    after = loop.monitor._endpoint.statistics_state()
    assert max(after["trend"]["values"]) <= max(before["trend"]["values"])
    assert "val_loss" not in after["evaluations"]
    loop.train(2)
    text = scrape(loop.monitor)
    assert sample(text, "train_baseline_restarts_total") == 0
    assert sample(text, "train_baseline_ready") == 1.0


@pytest.mark.parametrize("kept", [None, {"version": 99}, "nonsense"])
def test_statistics_that_cannot_be_read_do_not_keep_a_run_from_resuming(
    home: Path,
    new_monitor: MonitorFactory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kept: Any,
) -> None:
    """A checkpoint of an older or newer version is loaded all the same; the log says what is missing."""
    first = Loop(home, new_monitor, **SETTINGS)
    monkeypatch.setattr(first.monitor._endpoint, "statistics_state", lambda: kept)
    settle(first)
    first.monitor.close()
    second = Loop(home, new_monitor, **SETTINGS)
    assert (second.monitor.restore() or 0) > 0
    second.train(1)
    assert ("statistics are not used" in caplog.text) == (kept is not None)
    assert sample(scrape(second.monitor), "train_baseline_restarts_total") == 0


def test_a_statistic_that_fails_does_not_cost_the_checkpoint(
    home: Path, new_monitor: MonitorFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint is written without statistics."""

    def fail() -> dict[str, Any]:
        raise RuntimeError("broken")

    loop = Loop(home, new_monitor, **SETTINGS)
    monkeypatch.setattr(loop.monitor._endpoint, "statistics_state", fail)
    settle(loop)
    assert "a checkpoint has no statistics: RuntimeError: broken" in caplog.text


def test_utilisation_is_estimated_from_the_attached_model(home: Path, new_monitor: MonitorFactory) -> None:
    """With only a peak, 6 FLOPs per parameter and token are assumed."""
    loop = Loop(home, new_monitor, throughput={"peak_flops": 1e9})
    assert loop.monitor._ring.meta["parameters"] == 4 * 8 + 8 + 8 + 1
    loop.train(3)
    assert (sample(scrape(loop.monitor), "train_model_flops_utilization_ratio") or 0.0) > 0.0


def test_a_peak_without_a_model_is_refused(new_monitor: MonitorFactory) -> None:
    """Without FLOPs of the model the setting would have no effect."""
    with pytest.raises(ConfigError, match=r"set throughput\.flops_per_token"):
        new_monitor(settings={"throughput": {"peak_flops": 1e12}})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that the monitor's stopwatch shows; the test moves them."""
    now = [1000.0]
    fake = types.SimpleNamespace(perf_counter=lambda: now[0], time=time.time)
    with monkeypatch.context() as patched:
        patched.setattr("trainswitch.monitor.perf_counter", fake.perf_counter)
        patched.setattr("trainswitch.intervention.data_feed.perf_counter", fake.perf_counter)
        patched.setattr("trainswitch.intervention.keeper.time", fake)
        yield now


def test_each_second_is_counted_once(new_monitor: MonitorFactory, clock: list[float]) -> None:
    """Compute, waits for data and evaluations, interleaved as loops do, add up to the time that passed."""

    def load() -> Iterator[float]:
        for number in range(4):
            clock[0] += 0.25
            yield float(number)

    monitor = new_monitor()
    monitor.step(1.0)
    for loss in monitor.batches(load()):
        clock[0] += 0.5
        with monitor.evaluating():  # in the midst of a step
            clock[0] += 2.0
            for _ in monitor.batches(load()):
                clock[0] += 0.125
            monitor.evaluate(accuracy=0.5)
            clock[0] += 1.0
        clock[0] += 0.5
        monitor.step(loss)
        clock[0] += 4.0
        monitor.evaluate(val_loss=0.5)
    text = scrape(monitor)
    evaluation = 2.0 + 4 * (0.25 + 0.125) + 1.0 + 4.0
    assert sample(text, "train_phase_seconds_total", phase="train") == pytest.approx(4 * 1.0)
    assert sample(text, "train_phase_seconds_total", phase="data") == pytest.approx(4 * 0.25)
    assert sample(text, "train_phase_seconds_total", phase="evaluate") == pytest.approx(4 * evaluation)
    assert sample(text, "train_step_seconds_sum") == pytest.approx(4 * 1.25)


def test_a_checkpoint_is_no_part_of_a_step(
    home: Path, new_monitor: MonitorFactory, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What copying the state takes is counted as checkpoint, and the next step begins after it."""
    model = torch.nn.Linear(2, 2)
    monitor = new_monitor(model=model, settings={"checkpoint": {"interval_steps": 3}})
    capture = monitor._interventions.capture

    def slow() -> dict[str, Any]:
        clock[0] += 8.0
        return capture()

    monkeypatch.setattr(monitor._interventions, "capture", slow)
    for _ in range(5):
        clock[0] += 1.0
        monitor.step(math.e)
    text = scrape(monitor)
    assert sample(text, "train_phase_seconds_total", phase="checkpoint") == pytest.approx(8.0)
    assert sample(text, "train_phase_seconds_total", phase="train") == pytest.approx(4.0)
