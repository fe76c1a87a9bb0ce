"""Mixed precision: values are unscaled, and loss scale and skipped steps are read from the scaler."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.exporter.conftest import MonitorFactory
from tests.exporter.probes.conftest import layer_values, scraped, small_model

from trainswitch.errors import ConfigError
from trainswitch.monitor import Monitor


def build(
    new_monitor: MonitorFactory, *, fused: bool, enabled: bool = True
) -> tuple[Monitor, torch.nn.Module, torch.optim.Optimizer, Any]:
    """A monitor with a GradScaler on the CPU."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000, enabled=enabled)
    monitor = new_monitor(
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        settings={"sampling": {"layers": 1}, "checkpoint": {"interval_steps": 0}},
    )
    return monitor, model, optimizer, scaler


def amp_step(
    built: tuple[Monitor, torch.nn.Module, torch.optim.Optimizer, Any],
    *,
    overflow: bool = False,
    clip: bool = False,
) -> float:
    """One step; returns the norm of the unscaled gradients."""
    monitor, model, optimizer, scaler = built
    optimizer.zero_grad()
    batch = torch.ones(2, 4)
    loss = model(batch).square().sum()
    plain = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    scaler.scale(loss * math.inf if overflow else loss).backward()
    if clip:
        scaler.unscale_(optimizer)
        monitor.clip_grad_norm_(1e-3)
    scaler.step(optimizer)
    scaler.update()
    monitor.step(loss)
    return float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in plain])))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_gradients_are_unscaled(new_monitor: MonitorFactory, fused: bool, clip: bool) -> None:
    """The scaler unscales before the step, or leaves it to a fused optimizer: the norm is the true one."""
    built = build(new_monitor, fused=fused)
    expected = amp_step(built, clip=clip)
    monitor = built[0]
    assert scraped(monitor, "train_grad_norm") == pytest.approx(expected, rel=1e-4)
    squares = [v**2 for v in layer_values(monitor, "train_layer_grad_norm", "0", "2") if v]
    assert math.sqrt(sum(squares)) == pytest.approx(expected, rel=1e-4)
    assert scraped(monitor, "train_loss_scale") == 1024.0
    assert scraped(monitor, "train_skipped_steps_total", reason="loss_scale") == 0.0


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_is_counted_and_is_no_trouble(new_monitor: MonitorFactory, fused: bool) -> None:
    """An overflow is part of mixed precision: counted as skipped, and not as a non-finite gradient."""
    built = build(new_monitor, fused=fused)
    monitor = built[0]
    for overflow in (False, True, False):
        amp_step(built, overflow=overflow)
    assert scraped(monitor, "train_skipped_steps_total", reason="loss_scale") == 1.0
    assert scraped(monitor, "train_loss_scale") == 512.0
    assert scraped(monitor, "train_nonfinite_total", source="grad") == 0.0
    assert scraped(monitor, "train_steps_total") == 3.0


def test_a_disabled_scaler_has_no_scale(new_monitor: MonitorFactory) -> None:
    """With mixed precision switched off, nothing is scaled or skipped."""
    built = build(new_monitor, fused=False, enabled=False)
    expected = amp_step(built)
    assert scraped(built[0], "train_grad_norm") == pytest.approx(expected, rel=1e-4)
    assert scraped(built[0], "train_loss_scale") is None
    assert scraped(built[0], "train_skipped_steps_total", reason="loss_scale") == 0.0


def test_what_the_loop_says_itself_stands(new_monitor: MonitorFactory) -> None:
    """Arguments of step() win over what was read."""
    monitor, *_ = build(new_monitor, fused=False)
    monitor.step(1.0, loss_scale=2.0, skipped="user")
    assert scraped(monitor, "train_loss_scale") == 2.0
    assert scraped(monitor, "train_skipped_steps_total", reason="user") == 1.0
    assert scraped(monitor, "train_skipped_steps_total", reason="loss_scale") == 0.0


def test_the_scaler_is_saved_with_the_rest(new_monitor: MonitorFactory) -> None:
    """A rollback restores the loss scale, too."""
    monitor, *_ = build(new_monitor, fused=False)
    assert monitor._training is not None
    assert monitor._training.capture({})["scaler"]["scale"] == 1024.0


def test_a_wrong_scaler_is_refused(new_monitor: MonitorFactory) -> None:
    """Another object, or a scaler without the optimizer that it steps, cannot be read."""
    optimizer = torch.optim.SGD(small_model().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"scaler=object is not a torch\.amp\.GradScaler"):
        new_monitor(optimizer=optimizer, scaler=object())
    with pytest.raises(ConfigError, match="scaler= needs the optimizer"):
        new_monitor(scaler=torch.amp.GradScaler("cpu"))
