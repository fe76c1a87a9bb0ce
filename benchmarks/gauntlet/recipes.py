"""What is trained and how: the example's GPT in one of many usual ways."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gpt import GPT, GPTConfig, TextBatches, english_text

_VALIDATION_BATCHES, _VALIDATION_BATCH = 8, 32
_RANK_SEED = 7919
"""Between the seeds of two ranks' data."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to train."""

    layers: int = 2
    heads: int = 2
    width: int = 32
    context: int = 32
    batch: int = 16
    """Sequences a micro-batch."""
    accumulate: int = 1
    """Micro-batches a step."""
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop", "nadam", "adagrad"] = "adamw"
    rate: float = 3e-3
    weight_decay: float = 0.1
    clip: float | None = 1.0
    """Largest gradient norm; None does not clip."""
    schedule: Literal["cosine", "linear", "constant", "steps", "trapezoid", "restarts"] = "cosine"
    warmup: int = 60
    """Steps over which the rate rises from nothing."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the forward pass; float16 brings a GradScaler."""
    evaluate_every: int = 50
    """Steps."""
    ranks: int = 1


class Schedule:
    """The factor on the learning rate at a step; an object, so that a checkpoint holds its state."""

    def __init__(self, kind: str, steps: int, warmup: int) -> None:
        self.kind = kind
        self.steps = steps
        self.warmup = warmup
        self.creep_from: int | None = None
        self.creep_doubling = 0.0

    def __call__(self, step: int) -> float:
        """Return the factor at `step`, counted from 0."""
        done = min(1.0, max(0.0, (step - self.warmup) / (self.steps - self.warmup)))
        factor = min(1.0, (step + 1) / self.warmup) * self._course(done)
        if self.creep_from is not None:
            factor *= 2.0 ** (max(0, step - self.creep_from) / self.creep_doubling)
        return factor

    def _course(self, done: float) -> float:
        if self.kind == "constant":
            return 1.0
        if self.kind == "linear":
            return 1.0 - 0.9 * done
        if self.kind == "steps":
            return 0.3 ** int(done / 0.34)
        if self.kind == "trapezoid":
            return 1.0 if done < 0.8 else 1.0 - 0.9 * (done - 0.8) / 0.2
        if self.kind == "restarts":
            done = done * 3.0 % 1.0
        return 0.55 + 0.45 * math.cos(math.pi * done)


class Batch(NamedTuple):
    """What one micro-batch brings."""

    inputs: torch.Tensor
    """Token ids, (batch, context)."""
    targets: torch.Tensor
    """Their successors."""
    poisoned: bool = False
    """Whether a sample of it makes an activation NaN."""


class Batches:
    """The text in batches, by position; whoever trains may read a position wrongly."""

    def __init__(self, recipe: Recipe, text: torch.Tensor, seed: int, rank: int) -> None:
        self._source = TextBatches(
            text, batch=recipe.batch, context=recipe.context, seed=seed + _RANK_SEED * rank
        )
        self.spoil: Callable[[int, Batch], Batch] = lambda _, batch: batch
        """What becomes of the batch at a position, counted from 0."""

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch; there is no end."""
        position = self._source.position
        tokens = next(self._source)
        return self.spoil(position, Batch(tokens[:, :-1], tokens[:, 1:]))

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return self._source.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a position."""
        self._source.load_state_dict(state)


@dataclasses.dataclass(kw_only=True)
class Training:
    """Everything that takes part in a run, for the loop and for the faults."""

    recipe: Recipe
    seed: int
    rank: int
    model: GPT
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    scheduler: torch.optim.lr_scheduler.LambdaLR
    scaler: torch.amp.GradScaler | None
    batches: Batches
    validation_text: torch.Tensor
    kept: list[Any] = dataclasses.field(default_factory=list)
    """What a fault never lets go."""

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean loss over the same batches every time, in full precision."""
        context = self.recipe.context
        batches = TextBatches(
            self.validation_text,
            batch=_VALIDATION_BATCH,
            context=context,
            seed=1,
            length=_VALIDATION_BATCHES,
        )
        losses = [float(self.model(tokens[:, :-1], tokens[:, 1:])) for tokens in batches]
        return sum(losses) / len(losses)


def prepare(recipe: Recipe, steps: int, seed: int, rank: int) -> Training:
    """Return a run that is ready for its first step; equal on all ranks but for its data."""
    torch.manual_seed(seed)
    text, validation_text = english_text()
    model = GPT(
        GPTConfig(layers=recipe.layers, heads=recipe.heads, width=recipe.width, context=recipe.context)
    )
    optimizer = _optimizer(recipe, model)
    schedule = Schedule(recipe.schedule, steps, recipe.warmup)
    return Training(
        recipe=recipe,
        seed=seed,
        rank=rank,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
        scaler=torch.amp.GradScaler("cpu") if recipe.precision == "float16" else None,
        batches=Batches(recipe, text, seed, rank),
        validation_text=validation_text,
    )


def _optimizer(recipe: Recipe, model: GPT) -> torch.optim.Optimizer:
    parameters, rate, decay = model.parameters(), recipe.rate, recipe.weight_decay
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
    if recipe.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate)
    if recipe.optimizer == "nadam":
        return torch.optim.NAdam(parameters, lr=rate)
    if recipe.optimizer == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=rate)
    if recipe.optimizer == "adagrad":
        return torch.optim.Adagrad(parameters, lr=rate)
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9)
