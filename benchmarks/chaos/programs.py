"""The two programs under test, as they are run in forked processes: a trainer and the controller."""

from __future__ import annotations

import os
import time
from collections.abc import MutableSequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos import clock
from benchmarks.chaos.witness import Seen, Witness

if TYPE_CHECKING:
    from trainswitch import Monitor

STEP_S = 0.01
LOSS, GRAD_NORM, END = 0, 1, 2
"""Places in the numbers that the driver shares with a trainer: what it reports, and whether it is to end."""


def serve(values: dict[str, Any], log: Path, offset: clock.Offset) -> None:
    """Be the controller with these settings."""
    _begin(log, offset)
    from trainswitch_controller.serving import serve as serve_until_told
    from trainswitch_controller.settings import parse_settings

    raise SystemExit(serve_until_told(parse_settings(values)))


def train(
    run: str,
    incarnation: int,
    config: dict[str, Any],
    witness_path: Path,
    *,
    restores: bool,
    numbers: MutableSequence[float],
    log: Path,
    offset: clock.Offset,
) -> None:
    """Train one weight with SGD until told to end.

    The gradient is always 1 and the learning rate 1, so the weight moves by the factors of all reductions
    that are in effect, and by nothing else.
    """
    _begin(log, offset)
    import torch

    import trainswitch

    witness = Witness(witness_path, incarnation)
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with trainswitch.attach(
        optimizer=optimizer, run=run, state={"witness": witness}, config=config
    ) as switch:
        restored = _restore(switch) if restores else None
        witness.step = switch.current_step
        witness.saw(Seen.BEGAN, -1.0 if restored is None else float(restored))
        while not (switch.should_stop or numbers[END]):
            time.sleep(STEP_S)
            witness.step = switch.current_step + 1
            with torch.no_grad():
                weight.zero_()
            weight.grad = torch.ones_like(weight)
            optimizer.step()
            witness.saw(Seen.MOVED, -weight.item())
            switch.step(numbers[LOSS], grad_norm=numbers[GRAD_NORM])


def _restore(switch: Monitor) -> int | None:
    from trainswitch.errors import CheckpointError

    try:
        return switch.restore()
    except CheckpointError:  # all that there are were saved in trouble: begin anew
        return None


def _begin(log: Path, offset: clock.Offset) -> None:
    clock.follow(offset)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.setpgid(0, 0)  # Ctrl-C is for the driver, which ends what it started
