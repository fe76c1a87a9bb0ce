"""Training is never changed by being watched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gpt import GPT, GPTConfig, TextBatches, english_text

import trainswitch

STEPS = 200


@contextmanager
def unwatched() -> Iterator[None]:
    """Nothing."""
    yield None


def losses(
    home: Path,
    *,
    watched: bool,
    isolate: bool = False,
    clips: bool = True,
    fused: bool = False,
    steps: int = STEPS,
) -> list[float]:
    """Train the example's GPT, with dropout so that random numbers matter."""
    torch.manual_seed(0)
    text, _ = english_text()
    config = GPTConfig(layers=1, width=32, context=32)
    model = GPT(config)
    dropout = torch.nn.Dropout(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = TextBatches(text, batch=8, context=config.context, seed=0, length=steps)
    settings: dict[str, Any] = {
        "server": {"port": 0, "linger_seconds": 0},
        "checkpoint": {"interval_steps": 20, "probation_steps": 10},
        "isolate": isolate,
    }
    found = []
    with (
        trainswitch.attach(
            model, optimizer, run="same", scheduler=scheduler, state={"batches": batches}, config=settings
        )
        if watched
        else unwatched()
    ) as switch:
        assert switch is None or switch.guarded
        for batch in switch.batches(batches) if switch else batches:
            loss = dropout(model(batch[:, :-1], batch[:, 1:]).expand(16)).mean()
            loss.backward()
            if clips and switch:
                switch.clip_grad_norm_(1.0)
            elif clips:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            if switch:
                switch.step(loss, tokens=batch.numel())
            found.append(loss.item())
    return found


@pytest.mark.parametrize("isolate", [False, True])
def test_losses_of_200_steps_are_bit_identical_with_the_monitor_on_and_off(home: Path, isolate: bool) -> None:
    """Everything on (clipping, checkpoints, scheduler, RNG) changes not one bit of 200 losses."""
    torch.use_deterministic_algorithms(True)
    try:
        off = losses(home, watched=False)
        on = losses(home, watched=True, isolate=isolate)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(off) == STEPS
    assert on == off


def test_a_guard_that_finds_nothing_changes_nothing(home: Path) -> None:
    """Without clipping, so that the guard reads the gradients in the hook, and with a fused optimizer."""
    off = losses(home, watched=False, clips=False, fused=True, steps=30)
    assert losses(home, watched=True, clips=False, fused=True, steps=30) == off
