"""The gradient norm is the one before clipping, and measuring it never changes what clipping does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainswitch.probes.gradients import ClippingWatch, GradientNorm


def build() -> tuple[torch.nn.Linear, GradientNorm]:
    """A model and the probe of its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    return model, GradientNorm(torch.optim.SGD(model.parameters(), lr=0.0))


def backward(model: torch.nn.Module) -> float:
    """One backward pass; returns the norm of all gradients."""
    model.zero_grad()
    (model(torch.ones(2, 4)) ** 2).sum().backward()
    return norm_of(model)


def norm_of(model: torch.nn.Module) -> float:
    """The norm of all gradients."""
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.cat(found)))


def test_without_clipping_it_is_read_before_the_update() -> None:
    """Before the optimizer's step all gradients are measured, and taking the norm forgets it."""
    model, probe = build()
    expected = backward(model)
    probe.before_step()
    norm, clipped_at = probe.take()
    assert norm is not None
    assert float(norm) == pytest.approx(expected)
    assert clipped_at is None
    assert probe.take() == (None, None)


def test_clipping_returns_and_records_the_norm_before_it() -> None:
    """clip() does what torch's function does, and the step does not measure again."""
    model, probe = build()
    expected = backward(model)
    returned = probe.clip(None, 0.5)
    probe.before_step()
    norm, clipped_at = probe.take()
    assert norm is returned
    assert float(returned) == pytest.approx(expected)
    assert clipped_at == 0.5
    assert norm_of(model) == pytest.approx(0.5, rel=1e-4)


def test_without_gradients_clipping_records_zero_as_torch_returns_it() -> None:
    """A model without gradients is clipped to nothing."""
    _, probe = build()
    assert float(probe.clip(None, 1.0)) == 0.0


@given(
    seed=st.integers(0, 2**31),
    shapes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=2), min_size=1, max_size=6),
    dtypes=st.lists(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]), min_size=1, max_size=3),
    scale=st.sampled_from([1e-12, 1.0, 1e6]),
)
def test_clipping_with_layers_is_torchs_clipping_to_the_last_bit(
    seed: int, shapes: list[list[int]], dtypes: list[torch.dtype], scale: float
) -> None:
    """With per-parameter norms taken from the same kernel, norm and clipped gradients are torch's bits."""
    torch.manual_seed(seed)
    ours = [
        torch.nn.Parameter(torch.randn(shape).to(dtypes[i % len(dtypes)])) for i, shape in enumerate(shapes)
    ]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    for mine, its in zip(ours, theirs, strict=True):
        mine.grad = torch.randn_like(mine) * scale
        its.grad = mine.grad.clone()
    probe = GradientNorm(torch.optim.SGD(ours, lr=0.0))
    probe.per_parameter = True
    assert torch.equal(probe.clip(None, 1.0), torch.nn.utils.clip_grad_norm_(theirs, 1.0))
    for mine, its in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        assert its.grad is not None
        assert torch.equal(mine.grad, its.grad)


def test_each_parameters_norm_comes_with_it_where_it_is_asked_for() -> None:
    """The vector has the parameters that had a gradient, in the optimizer's order, before clipping."""
    model, probe = build()
    probe.per_parameter = True
    backward(model)
    model.bias.grad = None
    expected = float(torch.linalg.vector_norm(model.weight.grad))
    probe.clip(None, 0.01)
    taken = probe.take_vector()
    assert taken is not None
    assert [id(p) for p in taken[0]] == [id(model.weight)]
    assert taken[1].tolist() == pytest.approx([expected])
    assert probe.take_vector() is None


def test_a_norm_that_nobody_wants_is_not_measured() -> None:
    """Between sampled steps the gradients are left alone."""
    model, probe = build()
    probe.wanted = False
    backward(model)
    probe.before_step()
    assert probe.take() == (None, None)


def test_a_norm_that_sits_at_one_value_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """A loop that clips on its own, and does not pass the norm, is told how to mend it."""
    watch = ClippingWatch()
    for _ in range(200):
        watch.update(1.0)
    assert caplog.text.count("it is clipped before trainswitch sees it") == 1


def test_a_norm_that_moves_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Ordinary norms, and gradients that are all zero, are no sign of clipping."""
    watch = ClippingWatch()
    for number in range(200):
        watch.update(1.0 + 0.01 * (number % 3))
    for _ in range(200):
        watch.update(0.0)
    assert caplog.text == ""
