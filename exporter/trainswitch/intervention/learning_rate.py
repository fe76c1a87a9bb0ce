"""A factor on the learning rate that lasts, whatever scheduler the run has."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

from trainswitch.errors import ActionRefused, ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer


class LearningRateScale:
    """Multiplies an optimizer's learning rates, but only while ``optimizer.step()`` runs.

    A scheduler computes the next learning rate from the one it finds in the optimizer (chainable form), or
    anew from the initial one. A factor written into ``param_groups`` would be compounded by the first kind
    and forgotten by the second. So the scaled value exists only between the step's pre-hook and post-hook:
    schedulers, ``state_dict()`` and the user's own code see the value they know. It is stored and put back,
    not divided back, so no rounding accumulates. With a factor of 1 nothing is touched.

    A learning rate that is a tensor is scaled in place and without waiting for its device. A step that was
    captured in a CUDA graph replays the factor it was captured with: capture it again after a change.

    PyTorch runs no post-hook when ``step()`` raises; the stored value is then put back before the next step,
    unless a scheduler has set a new one meanwhile.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        """Register the two hooks.

        Raises:
            ConfigError: `optimizer` is not a ``torch.optim.Optimizer``.
        """
        if not hasattr(optimizer, "register_step_post_hook"):
            raise ConfigError(
                f"optimizer {type(optimizer).__name__!r} has no step hooks, so its learning rate cannot be "
                "scaled: pass a torch.optim.Optimizer."
            )
        self._optimizer = optimizer
        self._factor = 1.0
        self._stored: list[tuple[dict[str, Any], Any, Any]] = []
        """(group, value to put back, what stands in its place) while a step runs."""
        self._hooks = (
            optimizer.register_step_pre_hook(lambda *_: self._apply()),
            optimizer.register_step_post_hook(lambda *_: self._put_back()),
        )

    @property
    def factor(self) -> float:
        """What every learning rate is multiplied by; finite and above 0, 1.0 at the start."""
        return self._factor

    @factor.setter
    def factor(self, value: float) -> None:
        if not (math.isfinite(value) and value > 0.0):
            raise ConfigError(f"learning-rate factor {value!r} is not allowed: give a finite number above 0.")
        self._factor = float(value)

    def multiply(self, factor: float) -> None:
        """Multiply the present factor by `factor`, from the next step on.

        Raises:
            ActionRefused: a parameter group has no learning rate, so the factor would have no effect there.
            ConfigError: the product is not finite or not above 0.
        """
        for index, group in enumerate(self._optimizer.param_groups):
            if group.get("lr") is None:
                raise ActionRefused(
                    f"optimizer {type(self._optimizer).__name__!r} has no learning rate 'lr' in parameter "
                    f"group {index}, so it cannot be scaled: use another action."
                )
        self.factor = self._factor * factor

    def effective(self) -> list[float]:
        """Return the learning rate that a step uses now, one for each parameter group.

        It is NaN for a group without a learning rate, and for one that is a tensor on a device: reading
        that would make the host wait for the device.
        """
        return self._read(1.0 if self._stored else self._factor)

    def scheduled(self) -> list[float]:
        """Return the learning rate before the factor, one for each parameter group; NaN as in `effective`.

        For between two steps.
        """
        self._put_back()  # of a step that raised
        return self._read(1.0)

    def _read(self, factor: float) -> list[float]:
        values: list[float] = []
        for group in self._optimizer.param_groups:
            lr: Any = group.get("lr")
            readable = lr is not None and (isinstance(lr, numbers.Real) or lr.device.type == "cpu")
            values.append(float(lr * factor) if readable else math.nan)
        return values

    def detach(self) -> None:
        """Remove the hooks; the optimizer is then as if it had never been scaled."""
        self._put_back()
        for hook in self._hooks:
            hook.remove()

    def _apply(self) -> None:
        self._put_back()
        if self._factor == 1.0:
            return
        scaled_tensors: set[int] = set()
        for group in self._optimizer.param_groups:
            lr = group.get("lr")
            if isinstance(lr, numbers.Real):
                group["lr"] = lr * self._factor
                self._stored.append((group, lr, group["lr"]))
            elif lr is not None and id(lr) not in scaled_tensors:  # groups may share one tensor
                scaled_tensors.add(id(lr))
                self._stored.append((group, lr.detach().clone(), lr))
                lr.detach().mul_(self._factor)

    def _put_back(self) -> None:
        for group, original, scaled in self._stored:
            if not isinstance(scaled, numbers.Real):
                scaled.detach().copy_(original)
            elif group["lr"] is scaled:
                group["lr"] = original
        self._stored.clear()
