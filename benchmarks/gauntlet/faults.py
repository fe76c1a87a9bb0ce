"""What befalls a run: each fault a small object that knows where and when it strikes, and what it does.

A fault strikes once, in the second half of a run. It is of the run's *state* (weights, optimizer, schedule),
its *data* or its *machine*, as those are that a rollback or a restart can mend. A mistake in the program
comes back after each of them: the policy's ladders end in a pause for it, and it is none of these.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
import threading
from collections.abc import Callable
from typing import Literal

import torch

from benchmarks.gauntlet.recipes import Batch, Recipe, Training

Place = Literal["state", "gradients", "data"]
MEMORY_LIMIT_BYTES = 640 << 20
"""What a trainer may take before the launcher kills it, as a container's limit would."""

_EXPONENT_TOP = 30
"""The bit that makes a number below 2 one of about 1e38; any other bit of a weight or gradient heals."""
_VALUES = 128
"""Of a token."""
_LEAK_BYTES = 1 << 20
_FULL_DISK_BYTES = 64 << 10

_ADAMW = Recipe()
_SGD = Recipe(optimizer="sgd", rate=0.2, clip=None, schedule="trapezoid")
_FP16 = Recipe(precision="float16", batch=8)
_TWO_RANKS = Recipe(ranks=2, batch=8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault."""

    name: str
    place: Place
    """Where the loop lets it strike: before a step, between backward pass and update, or as data is read."""
    recipe: Recipe
    strike: Callable[[Training], None] = lambda _: None
    """What it does, once, at a place other than the data."""
    read: Callable[[int, Batch], Batch] = lambda _, batch: batch
    """What it makes of the batch at a position."""
    since: float = 0.6
    """Earliest share of the run at which it strikes; the latest is a tenth of the run later."""
    length: int = 1
    """Steps, or batches, after which it is over by itself."""
    relieve: Callable[[Training], None] = lambda _: None
    """What ends it after `length` steps, where something has to."""
    rank: int = 0
    """Which rank it strikes; data and state of all ranks where there is one only."""
    persists: bool = False
    """Whether a restarted process meets it again."""

    def step(self, steps: int, seed: int) -> int:
        """Return the step at which it strikes in a run of so many steps."""
        generator = torch.Generator().manual_seed(seed * 1009 + sum(self.name.encode()))
        return int(steps * (self.since + 0.1 * float(torch.rand((), generator=generator))))


def _poison(_: int, batch: Batch) -> Batch:
    return batch._replace(poisoned=True)


def _garble(_: int, batch: Batch) -> Batch:
    """Return what is read where a shard is unpacked by another codec: each byte is taken for another one."""
    order = torch.randperm(_VALUES, generator=torch.Generator().manual_seed(1))
    return Batch(order[batch.inputs], order[batch.targets])


def _shuffle_labels(_: int, batch: Batch) -> Batch:
    """Read the labels by another label map: each class is taken for another one."""
    order = torch.randperm(int(batch.targets.max()) + 1, generator=torch.Generator().manual_seed(0))
    return batch._replace(targets=order[batch.targets])


def _raise_rate(training: Training) -> None:
    training.scheduler.base_lrs = [rate * 100.0 for rate in training.scheduler.base_lrs]
    for group in training.optimizer.param_groups:
        group["lr"] *= 100.0


def _creep(training: Training) -> None:
    training.schedule.creep_from = training.scheduler.last_epoch
    training.schedule.creep_doubling = 12.0


@torch.no_grad()
def _flip(tensor: torch.Tensor, index: int) -> None:
    """Flip the top bit of one float's exponent."""
    tensor.view(-1).view(torch.int32)[index] ^= 1 << _EXPONENT_TOP


def _flip_weight(training: Training) -> None:
    generator = torch.Generator().manual_seed(training.seed)
    weight = training.model.get_submodule("blocks.0.attention").get_parameter("weight")
    _flip(weight.data, int(torch.randint(weight.numel(), (), generator=generator)))


def _flip_gradient(training: Training) -> None:
    generator = torch.Generator().manual_seed(training.seed)
    gradient = training.model.get_submodule("blocks.0.attention").get_parameter("weight").grad
    assert gradient is not None
    _flip(gradient, int(torch.randint(gradient.numel(), (), generator=generator)))


@torch.no_grad()
def _overflow(training: Training) -> None:
    """Let one layer's activations leave the range of fp16, as weights that grew too far do."""
    training.model.get_submodule("blocks.1.feed_forward.0").get_parameter("weight").mul_(1e4)
    training.model.get_submodule("blocks.1.feed_forward.2").get_parameter("weight").mul_(1e4)


@torch.no_grad()
def _corrupt_optimizer(training: Training) -> None:
    """Lose the second moments, as a resumption that loads half of the state does: giant updates follow."""
    for state in training.optimizer.state.values():
        state["exp_avg_sq"].mul_(1e-8)


def _flip_decay(training: Training) -> None:
    for group in training.optimizer.param_groups:
        group["weight_decay"] = -600.0


def _leak(training: Training) -> None:
    training.kept.append(bytearray(os.urandom(1) * _LEAK_BYTES))


def _stall(_: Training) -> None:
    threading.Event().wait()


def _freeze(_: Training) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _die(_: Training) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _fill_disk(_: Training) -> None:
    """Let every write fail that would make a file larger than a status file, for this process alone."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_DISK_BYTES, hard))


def _free_disk(_: Training) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(name="poisoned-batch", place="data", recipe=_ADAMW, read=_poison),
        Fault(name="lr-explosion", place="state", recipe=_ADAMW, strike=_raise_rate),
        Fault(name="lr-creep", place="state", recipe=_ADAMW, strike=_creep),
        Fault(name="weight-bit-flip", place="state", recipe=_ADAMW, strike=_flip_weight),
        Fault(name="gradient-bit-flip", place="gradients", recipe=_SGD, strike=_flip_gradient),
        Fault(name="fp16-overflow", place="state", recipe=_FP16, strike=_overflow),
        Fault(name="corrupt-shard", place="data", recipe=_SGD, read=_garble, since=0.8, length=8),
        Fault(name="label-shuffle", place="data", recipe=_SGD, read=_shuffle_labels, since=0.8, length=8),
        Fault(name="optimizer-state", place="state", recipe=_ADAMW, strike=_corrupt_optimizer),
        Fault(name="weight-decay-sign", place="state", recipe=_ADAMW, strike=_flip_decay),
        Fault(name="data-stall", place="state", recipe=_ADAMW, strike=_stall),
        Fault(
            name="host-memory-leak",
            place="state",
            recipe=_ADAMW,
            strike=_leak,
            length=1 << 30,
            since=0.5,
            persists=True,
        ),
        Fault(name="frozen-rank", place="state", recipe=_TWO_RANKS, strike=_freeze, rank=1),
        Fault(name="killed-rank", place="state", recipe=_TWO_RANKS, strike=_die, rank=1),
        Fault(
            name="full-disk",
            place="state",
            recipe=_ADAMW,
            strike=_fill_disk,
            relieve=_free_disk,
            length=240,
        ),
    )
}
