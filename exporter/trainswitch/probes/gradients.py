"""The gradient norm, before clipping: global and for each parameter, from one fused kernel."""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Iterable
from typing import Any

import torch

from trainswitch.probes.norms import is_sharded, is_uniform, local_part, norms, weigh

logger = logging.getLogger("trainswitch")

_SAME = 1e-4
_SAME_FOR_STEPS = 50


class GradientNorm:
    """Measures the norm once a step: where it clips, or else when the optimizer is about to step.

    Sharded gradients (DTensor) are measured without communication: the norm is then that of this rank's
    share, and the squares of all ranks add up to the square of the whole.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        """Measure the gradients of `optimizer`; its owner calls `before_step` from the pre-step hook."""
        self.wanted = True
        """Measure even where nothing is clipped."""
        self.per_parameter = False
        """Keep each parameter's norm, too, for `take_vector`."""
        self.max_norm: float | None = None
        """Clip whatever the optimizer is about to step on to this norm; None for no limit."""
        self._optimizer = optimizer
        self._sharded = is_sharded(self.parameters())
        self._norm: torch.Tensor | None = None
        self._checked: torch.Tensor | None = None
        """Norm of all gradients as they are now, for `check`."""
        self._vector: tuple[list[torch.Tensor], torch.Tensor] | None = None
        self._clipped_at: float | None = None
        self._limited = False
        """Whether `clip` has kept all gradients within `max_norm`, so that `before_step` need not."""
        self._watch = ClippingWatch()

    def clip(self, parameters: Iterable[torch.Tensor] | None, max_norm: float) -> torch.Tensor:
        """Scale the gradients down to `max_norm` and return the norm they had, as torch's own does.

        The limit of the same name holds, too, where it is smaller.
        With a ``GradScaler``, call its ``unscale_`` before.
        """
        everything = self.parameters()
        if parameters is None:
            chosen = everything
        else:
            chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if self.max_norm is not None:
            max_norm = min(max_norm, self.max_norm)
        self._clipped_at = max_norm
        measured = self._measure(chosen)
        if len(chosen) == len(everything) and (
            chosen is everything or all(map(operator.is_, chosen, everything))
        ):
            self._checked = measured
            self._limited = True
        if self._sharded or measured is None:
            returned = torch.nn.utils.clip_grad_norm_(chosen, max_norm)
            self._norm = returned if measured is None else measured
            return returned
        self._norm = measured
        torch.nn.utils.clip_grads_with_norm_(chosen, max_norm, measured)
        return measured

    def before_step(self) -> None:
        """Measure and clip, unless `clip` has done so."""
        limit = None if self._limited else self.max_norm
        self._limited = False
        first = self._norm is None  # a closure may be evaluated, and its gradients be clipped, several times
        if limit is None and not (first and (self.wanted or self.per_parameter)):
            return
        norm = self._checked = self._measure(self.parameters(), by_parameter=self.per_parameter and first)
        if norm is None:
            return
        # A fused optimizer unscales in its own kernel; GradScaler leaves it the scale meanwhile.
        scale: Any = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:
            norm = norm / scale.to(norm.device)
        if first:
            self._norm = norm
            if scale is not None and self._vector is not None:
                self._vector = self._vector[0], self._vector[1] / scale.to(self._vector[1].device)
        if limit is not None:
            self._limit(limit, norm)

    @torch.no_grad()
    def _limit(self, max_norm: float, norm: torch.Tensor) -> None:
        """Clip all gradients, whose unscaled norm (or this rank's share of it) is `norm`.

        The quotient is the same for scaled gradients. Shares are added up over the ranks by a reduction of
        one number, the only one that clipping here ever causes.
        """
        self._clipped_at = max_norm if self._clipped_at is None else min(max_norm, self._clipped_at)
        if not self._sharded:
            torch.nn.utils.clip_grads_with_norm_(self.parameters(), max_norm, norm)
            return
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        mesh: Any = next(gradient.device_mesh for gradient in gradients if hasattr(gradient, "device_mesh"))
        square = norm.square()
        for dimension in range(mesh.ndim):
            torch.distributed.all_reduce(square, group=mesh.get_group(dimension))
        quotient = torch.clamp(max_norm / (square.sqrt() + 1e-6), max=1.0)
        torch._foreach_mul_([local_part(gradient) for gradient in gradients], quotient)

    def check(self) -> torch.Tensor | None:
        """Return a 0-d tensor that is not finite where a gradient is not; None where there are none.

        For each time that the optimizer is about to step, after `before_step`. What was measured already is
        not measured again; of several norms until `take`, one that is not finite is the step's.
        """
        checked, self._checked = self._checked, None
        if checked is not None:
            return checked
        checked = self._measure(self.parameters(), by_parameter=False)
        if self._norm is None:
            self._norm = checked
        elif checked is not None:
            self._norm = torch.where(checked.isfinite().to(self._norm.device), self._norm, checked)
        return checked

    def take(self) -> tuple[torch.Tensor | None, float | None]:
        """Return this step's norm and the limit it was clipped to, and forget them."""
        taken = self._norm, self._clipped_at
        self._norm = self._checked = None
        self._clipped_at = None
        self._limited = False
        return taken

    def take_vector(self) -> tuple[list[torch.Tensor], torch.Tensor] | None:
        """Return the parameters that had a gradient and the norm of each, and forget them."""
        taken, self._vector = self._vector, None
        return taken

    def observe(self, norm: float | None) -> None:
        """Take a norm that has reached the host, to notice one that was clipped before it was measured."""
        if norm is not None:
            self._watch.update(norm)

    def parameters(self) -> list[torch.Tensor]:
        """Return the optimizer's parameters."""
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _measure(
        self, parameters: list[torch.Tensor], *, by_parameter: bool | None = None
    ) -> torch.Tensor | None:
        """Return the global norm of the gradients; None where there are none."""
        by_parameter = self.per_parameter if by_parameter is None else by_parameter
        if not self._sharded and not by_parameter:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            return torch.nn.utils.get_total_norm(gradients) if gradients else None
        with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
        if not with_gradient:
            return None
        gradients = [parameter.grad for parameter in with_gradient if parameter.grad is not None]
        with torch.no_grad():
            vector = weigh(norms([local_part(gradient) for gradient in gradients]), gradients)
        if by_parameter:
            self._vector = with_gradient, vector
        if self._sharded or is_uniform(gradients):
            # With one dtype on one device this is what torch does, to the last bit.
            total: torch.Tensor = torch.linalg.vector_norm(vector, 2.0)
            return total
        return torch.nn.utils.get_total_norm(gradients)


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
