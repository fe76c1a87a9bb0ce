"""Norms of the weights, and of what one optimizer step changes in them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from trainswitch.probes.norms import local_part, norms, weigh


class WeightNorms(NamedTuple):
    """What one sampled step says; both vectors are in the order of the parameters."""

    parameters: list[torch.Tensor]
    weights: torch.Tensor
    """Norm of each parameter before the step."""
    updates: torch.Tensor | None
    """Norm of each parameter's change; None without a copy to compare with."""


class WeightProbe:
    """Measures over one sampled optimizer step.

    The change is the difference of the weights after and before, whatever the optimizer does, so it needs
    the weights from before: one copy of this rank's parameters on their devices, from the step's beginning
    to its end and only on sampled steps. Optimizers free their temporaries by then, so the peak of a step
    grows by that copy at most.
    """

    def __init__(self, *, copies: bool) -> None:
        """Measure changes, too, where `copies` are allowed."""
        self.wanted = False
        """Measure at the next step."""
        self.copies = copies
        self._before: list[torch.Tensor] | None = None
        self._norms: WeightNorms | None = None

    def before_step(self, parameters: list[torch.Tensor]) -> None:
        """Take the norms of the weights and, where allowed, a copy."""
        self._before = None
        if not self.wanted or not parameters:
            return
        with torch.no_grad():
            weights = [local_part(parameter) for parameter in parameters]
            self._norms = WeightNorms(parameters, weigh(norms(weights, widen=True), parameters), None)
            if self.copies:
                self._before = [weight.clone() for weight in weights]

    def after_step(self) -> None:
        """Take the norms of the changes, and free the copy."""
        before, self._before = self._before, None
        if before is None or self._norms is None:
            return
        parameters = self._norms.parameters
        with torch.no_grad():
            torch._foreach_sub_(before, [local_part(parameter) for parameter in parameters])
            self._norms = self._norms._replace(updates=weigh(norms(before, widen=True), parameters))

    def take(self) -> WeightNorms | None:
        """Return what the sampled step said, and forget it."""
        taken, self._norms, self._before = self._norms, None, None
        return taken
