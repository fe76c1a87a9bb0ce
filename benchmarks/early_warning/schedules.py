"""How learning rates go: creeping up without end, or as healthy runs have them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

STEPS = 1000
"""Of a healthy run; one that creeps ends when its loss has broken."""
MOST_STEPS = 2000
_WARMUP, _LONG_WARMUP = 50, 400

Schedule = Callable[[int], float]
"""From a step, counted from 0, to the factor on the learning rate."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A usual learning rate for the example with one optimizer, and how fast it creeps."""

    rate: float
    doubling: int
    """Steps in which it doubles once it creeps."""
    creep_from: int = 200
    """Step at which it begins to."""


RECIPES = {"sgd": Recipe(0.2, doubling=300), "adamw": Recipe(3e-3, doubling=100)}
"""By optimizer. AdamW bears a rate a hundred times as large before it breaks, SGD one ten times as large."""


def _creep(recipe: Recipe) -> Schedule:
    def factor(step: int) -> float:
        doublings = max(0, step - recipe.creep_from) / recipe.doubling
        return min(1.0, (step + 1) / _WARMUP) * math.pow(2.0, doublings)

    return factor


def _cosine(warmup: int) -> Schedule:
    """Warm up linearly, then follow a cosine down to a tenth."""

    def factor(step: int) -> float:
        done = max(0.0, (step - warmup) / (STEPS - warmup))
        return min(1.0, (step + 1) / warmup) * (0.55 + 0.45 * math.cos(math.pi * done))

    return factor


CREEP = "creep"
HEALTHY = ("cosine", "warmup")
SCHEDULES: dict[str, Callable[[Recipe], Schedule]] = {
    CREEP: _creep,
    "cosine": lambda _: _cosine(_WARMUP),
    "warmup": lambda _: _cosine(_LONG_WARMUP),
}


def run_name(optimizer: str, schedule: str, seed: int) -> str:
    """Return the name of a run."""
    return f"{optimizer}-{schedule}-{seed}"
