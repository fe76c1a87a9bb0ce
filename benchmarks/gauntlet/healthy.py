"""Twenty healthy runs of different shapes, in which nothing is to be mended."""

from __future__ import annotations

import dataclasses

from benchmarks.gauntlet.recipes import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """One healthy run."""

    name: str
    recipe: Recipe
    leaves_at: dict[int, str] = dataclasses.field(default_factory=dict)
    """Step → ``exit`` or ``kill``: the run ends there and is started again from its checkpoint."""
    pace_factor: float = 1.0
    """On the time that a step takes."""


SHAPES = (
    # Sizes.
    Shape(name="small", recipe=Recipe(layers=1, heads=1, width=16)),
    Shape(name="deep", recipe=Recipe(layers=6, width=24, batch=8)),
    Shape(name="wide", recipe=Recipe(layers=1, heads=4, width=64, batch=8)),
    Shape(name="short-context", recipe=Recipe(context=8, batch=32)),
    Shape(name="tiny-batch", recipe=Recipe(batch=2)),
    Shape(name="accumulated", recipe=Recipe(batch=4, accumulate=4)),
    Shape(name="two-ranks", recipe=Recipe(ranks=2, batch=8)),
    # Optimizers.
    Shape(name="adam-unclipped", recipe=Recipe(optimizer="adam", clip=None)),
    Shape(name="sgd", recipe=Recipe(optimizer="sgd", rate=0.2)),
    Shape(name="sgd-unclipped", recipe=Recipe(optimizer="sgd", rate=0.2, clip=None)),
    Shape(name="nadam", recipe=Recipe(optimizer="nadam", rate=2e-3)),
    Shape(name="rmsprop", recipe=Recipe(optimizer="rmsprop", rate=1e-3)),
    Shape(name="adagrad", recipe=Recipe(optimizer="adagrad", rate=1e-2)),
    # Schedules and precisions.
    Shape(name="constant-rate", recipe=Recipe(schedule="constant", rate=1e-3)),
    Shape(name="rate-in-steps", recipe=Recipe(schedule="steps")),
    Shape(name="trapezoid", recipe=Recipe(schedule="trapezoid", warmup=150)),
    Shape(name="warm-restarts", recipe=Recipe(schedule="restarts")),
    Shape(name="mixed-precision", recipe=Recipe(precision="float16", batch=8)),
    # Restarts.
    Shape(name="continued-twice", recipe=Recipe(schedule="linear"), leaves_at={300: "exit", 650: "exit"}),
    Shape(name="killed-and-continued", recipe=Recipe(), leaves_at={250: "kill", 600: "kill"}),
)
