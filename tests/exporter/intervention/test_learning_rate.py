from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from trainswitch.errors import ActionRefused, ConfigError
from trainswitch.intervention.learning_rate import LearningRateScale

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: 1.0 / (step + 1)),
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, T_max=20),
    "OneCycleLR": lambda optimizer: OneCycleLR(optimizer, max_lr=0.3, total_steps=20),
    "SequentialLR": lambda optimizer: SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=5), CosineAnnealingLR(optimizer, 15)], [5]
    ),
    "ReduceLROnPlateau": lambda optimizer: ReduceLROnPlateau(optimizer, patience=2),
}


def parameters() -> list[torch.nn.Parameter]:
    """Two small weights, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(5, 3, generator=generator)) for _ in range(2)]


def train(optimizer: Optimizer, steps: int, scheduler: Any = None) -> list[float]:
    """Take steps on fixed gradients; return the learning rate that is seen between the steps."""
    seen = []
    for step in range(steps):
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                generator = torch.Generator().manual_seed(100 * step + index)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(1.0)
        elif scheduler is not None:
            scheduler.step()
        seen.append(float(optimizer.param_groups[0]["lr"]))
    return seen


def record_used(optimizer: Optimizer) -> list[float]:
    """Record the learning rate in force inside each step from here on."""
    used: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: used.append(float(optimizer.param_groups[0]["lr"])))
    return used


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
def test_every_step_is_scaled_and_the_scheduler_never_sees_it(name: str, tensor: bool) -> None:
    """Over a whole schedule the scheduler's own values are exactly those of an unscaled run.

    Each step uses them times the factor.
    """

    def run(factor: float) -> tuple[list[float], list[float]]:
        lr = torch.tensor(0.1) if tensor else 0.1
        optimizer = AdamW(parameters(), lr=lr)
        scheduler = SCHEDULERS[name](optimizer)
        scale = LearningRateScale(optimizer)
        used = record_used(optimizer)
        seen = train(optimizer, 5, scheduler)
        scale.multiply(factor)
        seen += train(optimizer, 14, scheduler)
        return seen, used

    plain_seen, plain_used = run(1.0)
    scaled_seen, scaled_used = run(0.25)

    assert plain_seen == scaled_seen
    assert plain_used[:5] == scaled_used[:5]
    assert [value * 0.25 for value in plain_used[5:]] == scaled_used[5:]
    assert len(set(plain_used)) > 1


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}, {"tensor": True}], ids=str)
@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_a_scaled_step_is_the_step_of_the_smaller_learning_rate(
    kind: type[Adam], options: dict[str, bool]
) -> None:
    """The weights move exactly as they would under lr times the factor, in every implementation of Adam."""
    kwargs: dict[str, Any] = dict(options)
    tensor = kwargs.pop("tensor", False)

    def weights(lr: float, factor: float) -> list[torch.nn.Parameter]:
        trained = parameters()
        optimizer = kind(trained, lr=torch.tensor(lr) if tensor else lr, **kwargs)
        LearningRateScale(optimizer).multiply(factor)
        train(optimizer, 6)
        return trained

    for expected, actual in zip(weights(0.005, 1.0), weights(0.01, 0.5), strict=True):
        assert torch.equal(expected, actual)


def test_a_factor_of_one_changes_no_bit() -> None:
    """With the factor at 1 the learning rate is the very object the user put there, even inside the step."""
    lr = 0.1
    optimizer = SGD(parameters(), lr=lr)
    LearningRateScale(optimizer)
    used: list[object] = []
    optimizer.register_step_pre_hook(lambda *_: used.append(optimizer.param_groups[0]["lr"]))

    train(optimizer, 1)

    assert used[0] is lr


def test_the_original_is_put_back_exactly() -> None:
    """Values that lr / factor * factor would change come back as they were, float and tensor alike."""
    tensor = torch.tensor(0.1)
    optimizer = SGD([{"params": [p], "lr": lr} for p, lr in zip(parameters(), (0.1, tensor), strict=True)])
    scale = LearningRateScale(optimizer)
    scale.multiply(1 / 3)

    train(optimizer, 10)

    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[1]["lr"] is tensor
    assert torch.equal(torch.tensor(0.1), tensor)


def test_a_tensor_that_groups_share_is_scaled_once() -> None:
    """Two groups with one learning-rate tensor use lr times the factor, not times its square."""
    shared = torch.tensor(0.5)
    optimizer = SGD([{"params": [p], "lr": shared} for p in parameters()])
    scale = LearningRateScale(optimizer)
    scale.multiply(0.5)
    used = record_used(optimizer)

    train(optimizer, 1)

    assert used == [0.25]
    assert shared.item() == 0.5


def test_a_tensor_on_a_device_is_never_read() -> None:
    """A learning rate whose value cannot be had without waiting is scaled in place and reported as NaN.

    The meta device stands for every device here: reading a value from it is an error.
    """
    lr = torch.full((), 0.1, device="meta")
    optimizer = SGD([torch.nn.Parameter(torch.empty(2, device="meta"))], lr=0.1)
    optimizer.param_groups[0]["lr"] = lr
    scale = LearningRateScale(optimizer)
    scale.multiply(0.5)

    optimizer.step()

    assert math.isnan(scale.effective()[0])
    assert optimizer.param_groups[0]["lr"] is lr


def test_effective_gives_what_the_next_step_uses() -> None:
    """`effective` lists lr times the factor of every group, and factors multiply."""
    optimizer = SGD([{"params": [p], "lr": lr} for p, lr in zip(parameters(), (0.4, 0.2), strict=True)])
    scale = LearningRateScale(optimizer)
    scale.multiply(0.5)
    scale.multiply(0.5)
    used = record_used(optimizer)

    expected = scale.effective()
    train(optimizer, 1)

    assert expected == [0.1, 0.05]
    assert used == expected[:1]
    assert scale.factor == 0.25


def test_state_dict_holds_the_unscaled_value() -> None:
    """A checkpoint of the optimizer does not know the factor, which is kept beside it."""
    optimizer = SGD(parameters(), lr=0.1)
    LearningRateScale(optimizer).multiply(0.5)
    train(optimizer, 2)

    assert optimizer.state_dict()["param_groups"][0]["lr"] == 0.1


def test_a_step_that_raises_does_not_compound_the_factor() -> None:
    """After a step that failed half-way, the next one still uses lr times the factor."""
    optimizer = SGD(parameters(), lr=0.5)
    scale = LearningRateScale(optimizer)
    scale.multiply(0.5)
    used = record_used(optimizer)

    def closure() -> float:
        raise MemoryError

    with pytest.raises(MemoryError):
        optimizer.step(closure)
    train(optimizer, 1)

    assert used == [0.25, 0.25]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_detach_ends_the_scaling() -> None:
    """After `detach` steps use the plain learning rate, and a copied optimizer never had the hooks."""
    optimizer = SGD(parameters(), lr=0.5)
    scale = LearningRateScale(optimizer)
    scale.multiply(0.5)
    clone = copy.deepcopy(optimizer)
    scale.detach()
    used, used_by_clone = record_used(optimizer), record_used(clone)

    train(optimizer, 1)
    train(clone, 1)

    assert used == used_by_clone == [0.5]


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_a_factor_out_of_bounds_is_refused(factor: float) -> None:
    """A factor that would stop or reverse training is refused, and the present one stays."""
    scale = LearningRateScale(SGD(parameters(), lr=0.5))

    with pytest.raises(ConfigError, match="finite number above 0"):
        scale.multiply(factor)

    assert scale.factor == 1.0


def test_an_optimizer_without_a_learning_rate_is_refused() -> None:
    """Where the factor would have no effect, `multiply` says which group has no learning rate."""
    optimizer = SGD(parameters(), lr=0.5)
    optimizer.param_groups[0]["lr"] = None
    scale = LearningRateScale(optimizer)

    with pytest.raises(ActionRefused, match=r"'SGD' has no learning rate 'lr' in parameter group 0"):
        scale.multiply(0.5)

    assert scale.factor == 1.0
    assert math.isnan(scale.effective()[0])


def test_something_that_is_no_optimizer_is_refused() -> None:
    """An object without step hooks is named, with what to pass instead."""
    with pytest.raises(ConfigError, match=r"pass a torch\.optim\.Optimizer"):
        LearningRateScale(object())  # type: ignore[arg-type]
