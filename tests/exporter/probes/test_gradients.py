"""The gradient norm is the one before clipping."""

from __future__ import annotations

import pytest
import torch

from trainswitch.probes.gradients import ClippingWatch, GradientNorm


def build() -> tuple[torch.nn.Linear, torch.optim.SGD, GradientNorm]:
    """A model, its optimizer, and the probe."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return model, optimizer, GradientNorm(optimizer)


def backward(model: torch.nn.Linear) -> float:
    """One backward pass; returns the norm of all gradients."""
    model.zero_grad()
    (model(torch.ones(2, 4)) ** 2).sum().backward()
    return float(torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()])))  # type: ignore[union-attr]


def test_without_clipping_it_is_read_before_the_update() -> None:
    """The optimizer's pre-step hook measures all gradients."""
    model, optimizer, probe = build()
    expected = backward(model)
    optimizer.step()
    norm, clipped_at = probe.take()
    assert norm is not None
    assert float(norm) == pytest.approx(expected)
    assert clipped_at is None
    assert probe.take() == (None, None)


def test_clipping_returns_and_records_the_norm_before_it() -> None:
    """clip() does what torch's function does, and the hook does not measure again."""
    model, optimizer, probe = build()
    expected = backward(model)
    returned = probe.clip(None, 0.5)
    optimizer.step()
    norm, clipped_at = probe.take()
    assert norm is returned
    assert float(returned) == pytest.approx(expected)
    assert clipped_at == 0.5
    left = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()]))  # type: ignore[union-attr]
    assert float(left) == pytest.approx(0.5, rel=1e-4)


def test_detach_leaves_the_optimizer_as_it_was() -> None:
    """After detach() nothing is measured any more."""
    model, optimizer, probe = build()
    probe.detach()
    backward(model)
    optimizer.step()
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
