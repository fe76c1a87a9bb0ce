"""Model FLOPs utilisation: how much of the hardware's peak goes into the model's own arithmetic."""

from __future__ import annotations

import logging
import math

from trainswitch.config import ThroughputConfig

logger = logging.getLogger("trainswitch")

FLOPS_PER_PARAMETER = 6.0
"""Floating-point operations per parameter and token: 2 forward, 4 backward."""
MEMORY_SECONDS = 60.0
"""A step this long ago weighs 1/e: longer than two scrapes, so that no step escapes them."""
_STEPS_UNTIL_COMPLAINT = 100


def transformer_flops_per_token(parameters: int) -> float:
    """Estimate the FLOPs of one token's forward and backward pass through a dense transformer: 6·N.

    Left out is attention's own 12·layers·heads·head width·context length, which the parameters do not tell,
    so utilisation comes out too low for long contexts; and it comes out too high where many parameters take
    no part in a token's arithmetic (mixtures of experts, large embeddings) or are not trained (adapters).
    State ``throughput.flops_per_token`` there. Recomputed activations do not count, as is usual.

    (J. Kaplan et al., Scaling Laws for Neural Language Models, arXiv:2001.08361, section 2.1; A. Chowdhery et
    al., PaLM: Scaling Language Modeling with Pathways, arXiv:2204.02311, appendix B.)
    """
    return FLOPS_PER_PARAMETER * parameters


class Utilization:
    """Model FLOPs over what the hardware could have done in the same time, recent steps weighing more.

    Both are sums that decay with the time of the steps, so a run of 1 ms steps and one of 10 minute steps
    need the same two numbers. The time is that of the step, with its wait for data, which is what utilisation
    is lost to; evaluations, checkpoints and pauses are left out.
    """

    def __init__(self, peak_flops: float, *, per_token: float = 0.0, per_step: float = 0.0) -> None:
        """Begin without steps.

        Args:
            peak_flops: FLOPs per second that this rank's hardware can do at most.
            per_token: FLOPs of a token.
            per_step: FLOPs of a step, besides those of its tokens.
        """
        self._peak = peak_flops
        self._per_token = per_token
        self._per_step = per_step
        self._ideal = 0.0
        self._actual = 0.0
        self._idle_steps = 0

    def update(self, tokens: float, seconds: float) -> None:
        """Take a step's tokens and duration; one whose duration or work is not known is left out."""
        ideal = (self._per_step + self._per_token * tokens) / self._peak
        if ideal > 0.0 and seconds > 0.0 and math.isfinite(ideal) and math.isfinite(seconds):
            decay = math.exp(-seconds / MEMORY_SECONDS)
            self._ideal = self._ideal * decay + ideal
            self._actual = self._actual * decay + seconds
        elif ideal == 0.0:
            self._idle_steps += 1
            if self._idle_steps == _STEPS_UNTIL_COMPLAINT:
                logger.warning(
                    "throughput.peak_flops has no effect: %d steps had no tokens; pass them as "
                    "switch.step(loss, tokens=n), or set throughput.flops_per_step.",
                    self._idle_steps,
                )

    def ratio(self) -> float | None:
        """Return the utilisation, 0 to 1; None of no steps."""
        return self._ideal / self._actual if self._actual else None


def utilization(config: ThroughputConfig, parameters: int | None) -> Utilization | None:
    """Return the utilisation that the settings ask for, or None where they give no peak.

    Args:
        config: its ``flops_per_step`` or ``flops_per_token`` counts, where one is given.
        parameters: of the model, for the estimate where neither is given.
    """
    if config.peak_flops is None:
        return None
    if config.flops_per_step is not None:
        return Utilization(config.peak_flops, per_step=config.flops_per_step)
    per_token = config.flops_per_token
    if per_token is None:
        per_token = transformer_flops_per_token(parameters or 0)
    return Utilization(config.peak_flops, per_token=per_token)
