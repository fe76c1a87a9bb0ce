"""StepRecorder: puts a step's values together, when they have reached the host, and writes its record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
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
# Bits worked out once: an enum's members cost more to look up than the record costs to pack.
_LOSS = 1 << Value.LOSS
_GRAD_NORM = 1 << Value.GRAD_NORM
_STEP_SECONDS = 1 << Value.STEP_SECONDS
_EPOCH = 1 << Value.EPOCH
_LOSS_SCALE = 1 << Value.LOSS_SCALE
_CLIPPED = 1 << Value.CLIPPED
_STEP = int(Kind.STEP)
_PADDING = tuple(
    (0.0,) * (VALUES - FIRST_LEARNING_RATE - inline) for inline in range(LEARNING_RATES_INLINE + 1)
)
"""What follows the learning rates, by how many there are."""


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

    def scaled(self, loss_scale: float | None, skipped: float | None, guarded: float | None = None) -> Step:
        """Return the step with what a GradScaler or the guard did; what the loop itself said stands.

        Args:
            loss_scale: scale of the loss.
            skipped: above 0 where the scaler found an overflow.
            guarded: above 0 where the guard skipped the update.
        """
        return self._replace(
            loss_scale=loss_scale if self.loss_scale is None else self.loss_scale,
            skipped=self.skipped or ("loss_scale" if skipped else "guard" if guarded else ""),
        )


class StepRecorder:
    """Writes steps into the ring."""

    def __init__(self, ring: StepRing, on_nonfinite: Callable[[int], None]) -> None:
        """Write into `ring`; call `on_nonfinite` with the step whose loss or norm is not finite."""
        self._ring = ring
        self._write = ring.write
        self._on_nonfinite = on_nonfinite

    def write(self, step: Step, loss: float | None, norm: float | None) -> None:
        """Write one step.

        Args:
            step: what was known at once.
            loss: None where there is none.
            norm: of the gradients; None where there is none.
        """
        # Taken apart at once: a dozen look-ups by name are a measurable part of a step's price.
        (number, at, seconds, wait, samples, tokens, epoch, scale, skipped, clipped_at, rates, overhead) = (
            step
        )
        present = _ALWAYS
        if loss is not None:
            present |= _LOSS
        if norm is not None:
            present |= _GRAD_NORM
        if seconds == seconds:  # not NaN
            present |= _STEP_SECONDS
        if epoch is not None:
            present |= _EPOCH
        if scale is not None:
            present |= _LOSS_SCALE
        clipped = 0.0
        if norm is not None and clipped_at is not None:
            present |= _CLIPPED
            clipped = 1.0 if norm > clipped_at else 0.0
        inline = 0
        if rates:
            inline = min(len(rates), LEARNING_RATES_INLINE)
            rest = tuple(rates[:inline]) + _PADDING[inline]
        else:
            rest = _PADDING[0]
        loss = 0.0 if loss is None else loss
        norm = 0.0 if norm is None else norm
        self._write(
            _STEP,
            number,
            (
                loss,
                norm,
                seconds,
                wait,
                samples,
                tokens,
                epoch or 0.0,
                scale or 0.0,
                clipped,
                overhead,
                inline,
                *rest,
            ),
            present,
            skipped.encode() if skipped else b"",
            at,
        )
        if inline == LEARNING_RATES_INLINE:
            for group in range(inline, len(rates)):
                self._ring.append(Kind.LEARNING_RATE, number, (float(group), rates[group]))
        # Mixed precision overflows now and then by design, and skips such a step: that is no trouble.
        if not isfinite(loss) or (not isfinite(norm) and skipped != "loss_scale"):
            self._on_nonfinite(number)
