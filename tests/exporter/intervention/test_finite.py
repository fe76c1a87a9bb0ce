"""Checkpoints of weights that are broken already are told apart from those that a run can go on from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainswitch.intervention.finite import nonfinite
from trainswitch.intervention.training_state import TrainingState


class Masked(nn.Module):
    """A model with a mask of infinities, as attention has, beside its weights."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.bias = nn.Parameter(torch.full((4, 4), -math.inf).triu(1), requires_grad=False)
        self.register_buffer("mask", torch.full((4, 4), -math.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Do something with all of it."""
        out: torch.Tensor = self.norm(self.linear(x)).softmax(1)
        return out


def captured(change: Callable[[Masked, torch.optim.Adam], Any]) -> str:
    """What is found in a run whose state was changed after a step."""
    model = Masked()
    optimizer = torch.optim.Adam(model.linear.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        change(model, optimizer)
    state = TrainingState(model=model, optimizer=optimizer)
    return state.nonfinite(state.capture({}))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda model, _: None, ""),
        (lambda model, _: model.linear.weight[3, 3].fill_(math.nan), "model['linear.weight'] holds NaN"),
        (lambda model, _: model.linear.bias[0].fill_(-math.inf), "model['linear.bias'] holds infinity"),
        (lambda model, _: model.norm.running_var[1].fill_(math.nan), "model['norm.running_var'] holds NaN"),
        (lambda model, _: model.mask[0, 0].fill_(math.nan), "model['mask'] holds NaN"),
        (
            lambda _, optimizer: optimizer.state[optimizer.param_groups[0]["params"][1]]["exp_avg_sq"].fill_(
                math.inf
            ),
            "optimizer['state'][1]['exp_avg_sq'] holds infinity",
        ),
    ],
    ids=["sound", "weight", "infinite weight", "running mean", "mask", "moment"],
)
def test_what_a_run_cannot_go_on_from_is_found(
    change: Callable[[Masked, torch.optim.Adam], Any], found: str
) -> None:
    """NaN anywhere in model or optimizer is found, infinity in what is trained; masks are left alone."""
    assert captured(change) == found


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64],
)
def test_every_type_of_number_is_judged(dtype: torch.dtype) -> None:
    """One NaN among 100,000 is found in every type; the largest finite numbers are no infinity."""
    finite = torch.full((100_000,), torch.finfo(dtype).max, dtype=torch.float64).to(dtype)
    assert nonfinite({"model": {"weight": finite}}) == ""
    broken = finite.to(torch.complex128 if dtype.is_complex else torch.float64)
    broken[77_777] = math.nan
    assert nonfinite({"model": {"weight": broken.to(dtype)}}) == "model['weight'] holds NaN"


def test_the_rest_of_a_state_is_not_judged() -> None:
    """A plateau scheduler's best value is infinite at first, and whole numbers are always finite."""
    assert nonfinite({"scheduler": {"best": torch.tensor(math.inf)}, "rng": {}, "model": {}}) == ""
    rest = {"count": torch.arange(9), "none": torch.empty(0), "extra": [None, 1.0]}
    assert nonfinite({"model": rest}) == ""
