"""One process of one run: ``python -m benchmarks.gauntlet.trainer SPEC.json``.

The loop is that of any user: the lines that have to do with faults stand apart from those that train.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trainswitch
from benchmarks.gauntlet.faults import FAULTS
from benchmarks.gauntlet.recipes import Batch, Training, prepare
from benchmarks.gauntlet.spec import Diary, Spec, count_step
from benchmarks.gauntlet.striker import Striker

CHECKPOINT_STEPS, PROBATION_STEPS, KEEP = 4, 18, 60
_PLAIN_SAVE_STEPS = 50
"""How often an unprotected run saves, as a plain loop does."""


def train(spec: Spec) -> None:
    """Train a run, or what is left of it, to its end."""
    rank = int(os.environ.get("RANK", "0"))
    diary = Diary(spec.folder)
    torch.set_num_threads(1)
    training = prepare(spec.recipe, spec.steps, spec.seed, rank)
    forward: torch.nn.Module = training.model
    if spec.recipe.ranks > 1:
        dist.init_process_group("gloo")
        forward = torch.nn.parallel.DistributedDataParallel(training.model)
    fault = FAULTS[spec.fault] if spec.fault is not None else None
    striker = Striker(fault, fault.step(spec.steps, spec.seed) if fault else 0, training, diary)
    with trainswitch.attach(
        forward,
        training.optimizer,
        run=spec.run,
        scheduler=training.scheduler,
        scaler=training.scaler,
        data=training.batches,
        config=settings(spec),
    ) as switch:
        resumed = switch.restore() if spec.protected else None
        diary.note("start", step=resumed or 0, rank=rank, executed=diary.executed)
        _loop(spec, training, forward, switch, striker, diary)
        reached, stopped = switch.current_step, switch.should_stop
    if rank == 0 and (reached >= spec.steps or stopped):
        diary.finish(val_loss=training.validate(), step=reached, stopped=stopped)
    if dist.is_initialized():
        dist.destroy_process_group()


def _loop(
    spec: Spec,
    training: Training,
    forward: torch.nn.Module,
    switch: trainswitch.Monitor,
    striker: Striker,
    diary: Diary,
) -> None:
    counter = diary.counter()
    left = {event["step"] for event in diary.events("leave")}
    beat = time.monotonic()
    batches = switch.batches(training.batches)
    for first in batches:
        number = switch.current_step + 1
        striker.at("state", number)
        loss = _backward(training, forward, first, batches)
        striker.at("gradients", number)
        _update(training, switch)
        training.scheduler.step()
        beat = _wait(beat, spec.pace)
        switch.step(loss, tokens=first.inputs.numel() * spec.recipe.accumulate, samples=spec.recipe.batch)
        if training.rank == 0:
            count_step(counter)
            if switch.current_step != number:
                diary.note("rollback", step=number, to=switch.current_step)
            if not spec.protected and number % _PLAIN_SAVE_STEPS == 0:
                torch.save(_state(training), spec.folder / "plain.pt")
        if switch.current_step % spec.recipe.evaluate_every == 0:
            with switch.evaluating():
                switch.evaluate(val_loss=training.validate())
            beat = max(beat, time.monotonic() - spec.pace)
        step = switch.current_step
        if step in spec.leaves_at and step not in left:
            diary.note("leave", step=step)
            if spec.leaves_at[step] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            break
        if step >= spec.steps:
            break


def _backward(
    training: Training, forward: torch.nn.Module, first: Batch, batches: Iterator[Batch]
) -> torch.Tensor:
    """Return the mean loss of a step's micro-batches, whose gradients are in the parameters."""
    recipe, total = training.recipe, torch.zeros(())
    for number in range(recipe.accumulate):
        batch = first if number == 0 else next(batches)
        with _precision(recipe.precision), _corrupt_sample(training, batch):
            loss = forward(batch.inputs, batch.targets) / recipe.accumulate
        (training.scaler.scale(loss) if training.scaler is not None else loss).backward()
        total += loss.detach()
    return total


def _update(training: Training, switch: trainswitch.Monitor) -> None:
    scaler, clip = training.scaler, training.recipe.clip
    if clip is not None:
        if scaler is not None:
            scaler.unscale_(training.optimizer)
        switch.clip_grad_norm_(clip)
    if scaler is None:
        training.optimizer.step()
    else:
        scaler.step(training.optimizer)
        scaler.update()
    training.optimizer.zero_grad()


def _precision(name: str) -> contextlib.AbstractContextManager[Any]:
    if name == "float32":
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=getattr(torch, name))


@contextlib.contextmanager
def _corrupt_sample(training: Training, batch: Batch) -> Iterator[None]:
    """Make one activation NaN where the batch is poisoned, as a corrupt sample would."""
    if not batch.poisoned:
        yield
        return

    def corrupt(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(output)
        mask.view(-1)[0] = torch.nan
        return output + mask

    handle = training.model.get_submodule("norm").register_forward_hook(corrupt)
    try:
        yield
    finally:
        handle.remove()


def _wait(beat: float, pace: float) -> float:
    """Sleep until a step's time is over, and return when that was."""
    now = time.monotonic()
    due = beat + pace
    if due > now:
        time.sleep(due - now)
        return due
    return now


def _state(training: Training) -> dict[str, Any]:
    return {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}


def settings(spec: Spec) -> dict[str, Any]:
    """Return the switch's settings for a run: what a user with these steps would write, and no more."""
    if spec.home is None:
        return {"enabled": False, "checkpoint": {"folder": str(spec.folder / "none")}}
    return {
        "server": {"port": 0, "linger_seconds": 2, "targets_dir": str(spec.home / "targets")},
        "control": {"folder": str(spec.home / "control")},
        "checkpoint": {
            "folder": str(spec.home / "checkpoints"),
            "interval_steps": CHECKPOINT_STEPS,
            "probation_steps": PROBATION_STEPS,
            "keep": KEEP,
        },
        "statistics": {"total_steps": spec.steps},
    }


def main() -> None:
    """Train the run of the command line."""
    train(Spec.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
