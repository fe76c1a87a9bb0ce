"""What automatic mixed precision did in a step: its loss scale, and whether it skipped the update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainswitch.errors import ConfigError

if TYPE_CHECKING:
    import torch


class LossScale:
    """Reads a ``torch.amp.GradScaler`` without waiting for the device.

    ``GradScaler.step`` either does not call the optimizer after an overflow (it has waited for the device
    to know), or calls one that skips in its own kernel and leaves it the tensor ``found_inf``, which is read
    late like every device value.
    """

    def __init__(self, scaler: Any) -> None:
        """Read `scaler`.

        Raises:
            ConfigError: it is not a ``GradScaler``.
        """
        if not (hasattr(scaler, "_get_scale_async") and hasattr(scaler, "is_enabled")):
            raise ConfigError(
                f"scaler={type(scaler).__name__} is not a torch.amp.GradScaler: pass that one, "
                "or give step() loss_scale= and skipped=."
            )
        self._scaler = scaler
        self._stepped = False
        self._found_inf: torch.Tensor | None = None

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that the optimizer is about to step; called from its pre-step hook."""
        self._stepped = True
        self._found_inf = getattr(optimizer, "found_inf", None)

    def take(self) -> tuple[Any, ...]:
        """Return the scale and whether the step was skipped (above 0), as device or host values.

        Empty while the scaler is disabled.
        """
        stepped, found_inf = self._stepped, self._found_inf
        self._stepped, self._found_inf = False, None
        if not self._scaler.is_enabled():
            return ()
        scale = self._scaler._get_scale_async()  # noqa: SLF001 - get_scale() waits for the device
        return scale, found_inf if found_inf is not None else float(not stepped)
