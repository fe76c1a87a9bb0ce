"""The global gradient norm, before clipping, from one fused kernel."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("trainswitch")

_SAME = 1e-4
_SAME_FOR_STEPS = 50


class GradientNorm:
    """Measures the norm once a step: where it clips, or else when the optimizer is about to step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Hook into `optimizer`."""
        self._optimizer = optimizer
        self._norm: torch.Tensor | None = None
        self._clipped_at: float | None = None
        self._hook = optimizer.register_step_pre_hook(self._before_step)
        self._watch = ClippingWatch()

    def clip(self, parameters: Iterable[torch.Tensor] | None, max_norm: float) -> torch.Tensor:
        """Scale the gradients down to `max_norm` and return the norm they had, as torch's own does."""
        from torch.nn.utils import clip_grad_norm_

        if parameters is None:
            parameters = self._parameters()
        self._norm = clip_grad_norm_(parameters, max_norm)
        self._clipped_at = max_norm
        return self._norm

    def take(self) -> tuple[torch.Tensor | None, float | None]:
        """Return this step's norm and the limit it was clipped to, and forget them."""
        taken = self._norm, self._clipped_at
        self._norm = None
        self._clipped_at = None
        return taken

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        self._hook.remove()

    def observe(self, norm: float | None) -> None:
        """Take a norm that has reached the host, to notice one that was clipped before it was measured."""
        if norm is not None:
            self._watch.update(norm)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _before_step(self, *_: Any) -> None:
        if self._norm is not None:
            return
        from torch.nn.utils import get_total_norm

        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        if gradients:
            self._norm = get_total_norm(gradients)


class ClippingWatch:
    """Notices a norm that keeps sitting at one value: it was clipped before it was measured."""

    def __init__(self) -> None:
        self._last = math.nan
        self._same = 0
        self.reported = False

    def update(self, norm: float) -> None:
        """Take the next norm; logs one sentence when `_SAME_FOR_STEPS` in a row are equal."""
        if self.reported:
            return
        self._same = self._same + 1 if abs(norm - self._last) <= _SAME * norm else 0
        self._last = norm
        if self._same >= _SAME_FOR_STEPS and norm > 0.0:
            self.reported = True
            logger.warning(
                "the gradient norm has been %.4g for %d steps: it is clipped before trainswitch sees it; "
                "clip with switch.clip_grad_norm_(max_norm), or pass what torch.nn.utils.clip_grad_norm_ "
                "returned as switch.step(loss, grad_norm=norm).",
                norm,
                self._same,
            )
