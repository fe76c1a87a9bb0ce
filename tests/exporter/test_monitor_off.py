"""A monitor that is switched off: the training goes on as if it were not there."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import trainswitch
from trainswitch.errors import ActionRefused, ConfigError
from trainswitch.monitor import Monitor
from trainswitch.monitor_off import MonitorOff

OFF = {"enabled": False}


def train(make: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train a little with what `make` returns for a model and an optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clip, batches, step = make(model, optimizer)
    losses = []
    for batch in batches([torch.randn(8, 4) for _ in range(5)]):
        loss = model(batch).square().sum()
        loss.backward()
        losses += [loss.item(), float(clip(0.5))]
        optimizer.step()
        optimizer.zero_grad()
        step(loss)
    return losses, model.state_dict()


def test_training_is_that_of_plain_torch(home: Path) -> None:
    """Same losses, norms and weights to the last bit; nothing is hooked, written, served or started."""
    threads = set(threading.enumerate())
    switches: list[Monitor] = []

    def off(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        switch = trainswitch.attach(model, optimizer, run="r", config=OFF)
        switches.append(switch)
        assert not optimizer._optimizer_step_pre_hooks
        return switch.clip_grad_norm_, switch.batches, switch.step

    def bare(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def clip(max_norm: float) -> torch.Tensor:
            return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

        return clip, iter, lambda _loss: None

    (losses, weights), (expected, expected_weights) = train(off), train(bare)
    assert losses == expected
    for name, weight in weights.items():
        assert torch.equal(weight, expected_weights[name])
    assert switches[0].current_step == 5
    assert switches[0].should_stop is False
    assert set(threading.enumerate()) == threads
    assert list(home.iterdir()) == []


def test_it_has_all_that_a_monitor_has(home: Path) -> None:
    """Every public method is its own, with the same signature: none needs a part that is not there."""
    for name, member in vars(Monitor).items():
        if name.startswith("_"):
            continue
        own = vars(MonitorOff).get(name)
        assert own is not None, name
        if not isinstance(member, property):
            assert inspect.signature(own) == inspect.signature(member), name
    assert inspect.signature(MonitorOff.__init__) == inspect.signature(Monitor.__init__)


def test_a_loop_may_use_all_of_it(home: Path) -> None:
    """Without torch's objects, too, whichever way it is made."""
    with trainswitch.Monitor(run="r", config=OFF, step=7) as switch:
        assert isinstance(switch, MonitorOff)
        switch.micro_step(1.0)
        switch.step(grad_norm=1.0, tokens=5)
        with switch.evaluating():
            switch.evaluate(val_loss=1.0)
        switch.set_sampling(grad_norm=0)
        assert switch.current_step == 8
        assert switch.url is None
        assert switch.restore() is None
        with pytest.raises(ConfigError, match="needs the optimizer"):
            switch.clip_grad_norm_(1.0)
    switch.close("crashed")


def test_a_wrong_setting_is_refused_all_the_same(home: Path) -> None:
    """What is wrong must not wait until the monitor is switched on."""
    with pytest.raises(ConfigError, match="did you mean 'server'"):
        trainswitch.attach(run="r", config={**OFF, "sever": {}})
    with pytest.raises(ConfigError, match="run name"):
        trainswitch.attach(run="a/b", config=OFF)
    with pytest.raises(ConfigError, match="is not a setting"):
        trainswitch.attach(run="r", config=OFF).set_sampling(losses=1)


def test_a_run_with_checkpoints_does_not_begin_anew(home: Path) -> None:
    """restore() has no checkpoint to return, so it refuses instead of starting the run from step 0."""
    switch = trainswitch.attach(run="r", config=OFF)
    with pytest.raises(ActionRefused, match="needs the monitor, which is off"):
        switch.restore(500)
    (home / "checkpoints" / "r" / "step-000000000500").mkdir(parents=True)
    with pytest.raises(ActionRefused, match="needs the monitor, which is off"):
        switch.restore()
