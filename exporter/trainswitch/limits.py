"""Absolute limits, and the phases of training that they hold in."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from trainswitch.sections import Section


class PhaseConfig(Section):
    """One phase of training: the steps after the phase before it, up to its end."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")
    """As in the label ``phase``, for example ``warmup``, ``main`` or ``decay``."""
    until_step: int | None = Field(default=None, ge=1)
    """Number of its last step."""
    until_fraction: float | None = Field(default=None, gt=0.0, lt=1.0)
    """The same as a fraction of `statistics.total_steps`."""


class LimitConfig(Section):
    """One absolute limit; it holds during the warm-up of the statistics, too."""

    signal: Literal["loss", "grad_norm", "loss_ratio", "learning_rate_unchanged_steps"]
    """``loss_ratio`` is the largest loss of the trend window over its median; it holds after the warm-up.
    ``learning_rate_unchanged_steps`` is for how many steps the schedule may leave the learning rate alone."""
    bound: Literal["upper"] = "upper"
    severity: Literal["warning", "critical"] = "critical"
    """``warning``: a step seen above it is told to people. ``critical``: that, and an intervention is asked
    for when `steps` of them, and a certain share of all, lie above it. Only ``loss`` and ``grad_norm`` can be
    critical."""
    value: float
    steps: int | None = Field(default=None, ge=3, le=100)
    """How many of the steps that scrapes see have to lie above it within 5 seconds, or 1 or 15 minutes,
    before it is critical. Default: 3."""
    phase: str | None = None
    """One of `phases`. Default: all of those that have no such limit of their own."""
    reason: str = Field(default="", max_length=200)
    """Why this value, for those who meet it later."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What at most one limit is in force for: the labels of ``train_limit``."""
        return self.signal, self.bound, self.severity

    @model_validator(mode="after")
    def _read_by_a_rule(self) -> LimitConfig:
        if self.severity == "critical" and self.signal not in ("loss", "grad_norm"):
            raise ValueError(f"{self.signal} only warns and asks for no action: add 'severity: warning'")
        if self.severity == "warning" and self.steps is not None:
            raise ValueError("steps has no effect on a warning, which one step causes: remove it")
        return self


class Phases:
    """The phases of one run, by step number: going back in steps goes back in phases."""

    def __init__(self, phases: Sequence[PhaseConfig], total_steps: int | None) -> None:
        """Work out where each phase ends.

        Args:
            phases: in order.
            total_steps: planned length of the run.

        Raises:
            ValueError: the phases do not follow each other to the end of the run.
        """
        self.names = tuple(phase.name for phase in phases)
        for name, count in Counter(self.names).items():
            if count > 1:
                raise ValueError(f"phases names {name!r} more than once: give each phase a name of its own")
        self._ends = [_end(phase, total_steps) for phase in phases[:-1]]
        for (first, second), (earlier, later) in zip(
            pairwise(self.names), pairwise(self._ends), strict=False
        ):
            if later <= earlier:
                raise ValueError(
                    f"phase {second!r} would end at step {later}, and {first!r} before it at step {earlier}: "
                    "let each phase end after the one before it"
                )
        if phases and (phases[-1].until_step is not None or phases[-1].until_fraction is not None):
            raise ValueError(
                f"phase {self.names[-1]!r} is the last and lasts to the end of the run: remove its "
                "until_step or until_fraction, or add the phase after it"
            )

    def at(self, step: int) -> str | None:
        """Return the phase that `step` belongs to; None where there are no phases."""
        return self.names[bisect.bisect_left(self._ends, step)] if self.names else None


def _end(phase: PhaseConfig, total_steps: int | None) -> int:
    if (phase.until_step is None) == (phase.until_fraction is None):
        raise ValueError(f"phase {phase.name!r} needs either until_step or until_fraction: give one of them")
    if phase.until_step is not None:
        return phase.until_step
    if total_steps is None:
        raise ValueError(
            f"phase {phase.name!r} ends at a fraction of a length that is not known: set "
            "statistics.total_steps, or use until_step"
        )
    assert phase.until_fraction is not None
    return round(phase.until_fraction * total_steps)


def limits_in(phase: str | None, limits: Iterable[LimitConfig]) -> list[LimitConfig]:
    """Return the limits that are in force in `phase`: its own, and those of every phase besides."""
    limits = list(limits)
    own = {limit.key for limit in limits if limit.phase is not None and limit.phase == phase}
    return [
        limit for limit in limits if limit.phase == phase or (limit.phase is None and limit.key not in own)
    ]


def check_limits(limits: Iterable[LimitConfig], phases: Sequence[str]) -> None:
    """Refuse limits that contradict each other or are never in force.

    Args:
        limits: all limits of a run.
        phases: names of its phases.

    Raises:
        ValueError: one of them is such a limit.
    """
    found: dict[tuple[str, str, str], list[str | None]] = {}
    for limit in limits:
        if limit.phase is not None and limit.phase not in phases:
            raise ValueError(
                f"limits names phase {limit.phase!r}, which is not in phases: "
                + (
                    f"use one of {', '.join(phases)}"
                    if phases
                    else "there are none, so remove it or add phases"
                )
            )
        named = found.setdefault(limit.key, [])
        if limit.phase in named:
            where = f" in phase {limit.phase!r}" if limit.phase is not None else ""
            raise ValueError(f"limits names {' '.join(limit.key)} more than once{where}: keep one of them")
        named.append(limit.phase)
    for key, named in found.items():
        if None in named and phases and set(phases) <= set(named):
            raise ValueError(
                f"every phase has a limit {' '.join(key)} of its own, so the one without a phase has no "
                "effect: remove it"
            )
