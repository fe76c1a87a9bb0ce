"""StepRecorder: puts a step's values together, when they have reached the host, and writes its record."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainswitch.recording.records import FIRST_LEARNING_RATE, LEARNING_RATES_INLINE, VALUES, Kind, Value
from trainswitch.recording.ring import StepRing

_ALWAYS = (
    1 << Value.DATA_WAIT_SECONDS
    | 1 << Value.SAMPLES
    | 1 << Value.TOKENS
    | 1 << Value.OVERHEAD_SECONDS
    | 1 << Value.LEARNING_RATES
)
_PADDING = (0.0,) * (VALUES - FIRST_LEARNING_RATE)


class Step(NamedTuple):
    """What the host knows of a step before its loss and gradient norm have arrived."""

    number: int
    ended_at: float
    """Unix seconds."""
    seconds: float
    """Duration; NaN where it says nothing, as at the first step."""
    data_wait: float
    samples: float
    tokens: float
    epoch: float | None
    loss_scale: float | None
    skipped: str
    """Why the update was skipped, or empty."""
    clipped_at: float | None
    """Norm that the gradients were clipped to."""
    rates: Sequence[float]
    """Learning rate per parameter group."""
    overhead: float
    """Seconds that recording this step has taken so far."""


class StepRecorder:
    """Writes steps into the ring."""

    def __init__(self, ring: StepRing, on_nonfinite: Callable[[int], None]) -> None:
        """Write into `ring`; call `on_nonfinite` with the step whose loss or norm is not finite."""
        self._ring = ring
        self._on_nonfinite = on_nonfinite

    def write(self, step: Step, values: Sequence[float | None]) -> None:
        """Write one step.

        Args:
            step: what was known at once.
            values: loss and gradient norm; None where there is none.
        """
        loss, norm = values
        present = _ALWAYS
        if loss is not None:
            present |= 1 << Value.LOSS
        if norm is not None:
            present |= 1 << Value.GRAD_NORM
        if step.seconds == step.seconds:  # not NaN
            present |= 1 << Value.STEP_SECONDS
        if step.epoch is not None:
            present |= 1 << Value.EPOCH
        if step.loss_scale is not None:
            present |= 1 << Value.LOSS_SCALE
        clipped = 0.0
        if norm is not None and step.clipped_at is not None:
            present |= 1 << Value.CLIPPED
            clipped = float(norm > step.clipped_at)
        rates = step.rates
        inline = min(len(rates), LEARNING_RATES_INLINE)
        self._ring.append(
            Kind.STEP,
            step.number,
            (
                0.0 if loss is None else loss,
                0.0 if norm is None else norm,
                step.seconds,
                step.data_wait,
                step.samples,
                step.tokens,
                step.epoch or 0.0,
                step.loss_scale or 0.0,
                clipped,
                step.overhead,
                float(inline),
                *rates[:inline],
                *_PADDING[inline:],
            ),
            present=present,
            label=step.skipped,
            at=step.ended_at,
        )
        for group in range(inline, len(rates)):
            self._ring.append(Kind.LEARNING_RATE, step.number, (float(group), rates[group]))
        if not (_finite(loss) and _finite(norm)):
            self._on_nonfinite(step.number)


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
