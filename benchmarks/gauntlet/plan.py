"""Which runs the gauntlet has, and in which waves they are trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gauntlet.faults import FAULTS
from benchmarks.gauntlet.healthy import SHAPES
from benchmarks.gauntlet.recipes import Recipe
from benchmarks.gauntlet.spec import Spec

STEPS = 1200
"""Of a run: five minutes, beside which the seconds that an answer takes are few."""
PACE_S = 0.25
"""Least time of a step: few real ones are shorter, and the rules work in seconds."""
QUICK_SHAPES = 3


@dataclasses.dataclass(frozen=True)
class Plan:
    """All runs of one gauntlet."""

    waves: tuple[tuple[Spec, ...], ...]
    """Protected runs; each wave has a stack of its own, as the policy has a budget for all runs."""
    unprotected: dict[str, Spec]
    """Faulted run → its twin without protection."""
    unfaulted: dict[str, Spec]
    """Faulted run → its twin without a fault; runs share them."""

    @property
    def twins(self) -> list[Spec]:
        """All runs that nobody watches, each once."""
        specs = (*self.unfaulted.values(), *self.unprotected.values())
        return list({spec.run: spec for spec in specs}.values())


def plan(
    folder: Path,
    *,
    faults: Sequence[str] = tuple(FAULTS),
    seeds: Sequence[int],
    shapes: int = len(SHAPES),
    steps: int = STEPS,
    pace: float = PACE_S,
) -> Plan:
    """Return the runs for `faults` × `seeds` and the first `shapes` healthy ones, all below `folder`."""
    waves = []
    unprotected, unfaulted = {}, {}
    for number, seed in enumerate(seeds):
        home = folder / f"stack-{seed}"
        wave = []
        for name in faults:
            recipe = FAULTS[name].recipe
            run = f"{name}-{seed}"
            common = {"recipe": recipe, "steps": steps, "seed": seed}
            wave.append(
                Spec(run=run, folder=folder / "runs" / run, home=home, pace=pace, fault=name, **common)
            )
            alone = f"unprotected-{run}"
            unprotected[run] = Spec(run=alone, folder=folder / "twins" / alone, fault=name, **common)
            clean = f"unfaulted-{_recipe_name(recipe)}-{seed}"
            unfaulted[run] = Spec(run=clean, folder=folder / "twins" / clean, **common)
        for shape in SHAPES[number : shapes : len(seeds)]:
            run = f"healthy-{shape.name}"
            wave.append(
                Spec(
                    run=run,
                    folder=folder / "runs" / run,
                    home=home,
                    recipe=shape.recipe,
                    steps=steps,
                    seed=seed,
                    pace=pace * shape.pace_factor,
                    leaves_at={step: how for step, how in shape.leaves_at.items() if step < steps},
                )
            )
        waves.append(tuple(wave))
    return Plan(tuple(waves), unprotected, unfaulted)


def _recipe_name(recipe: Recipe) -> str:
    names = [recipe.optimizer, recipe.schedule, recipe.precision]
    return "-".join(names + ([f"{recipe.ranks}ranks"] if recipe.ranks > 1 else []))
