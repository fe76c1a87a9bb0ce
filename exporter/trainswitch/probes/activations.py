"""Activations on sampled steps: how many units are inactive, and whether anything is not finite."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

logger = logging.getLogger("trainswitch")

Inactive = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps a module's input and output to a mask of the units whose slope is zero or next to it."""

_INACTIVE: tuple[tuple[type[nn.Module], Inactive], ...] = (
    (nn.ReLU, lambda _, y: y == 0),
    (nn.ReLU6, lambda _, y: (y == 0) | (y == 6)),
    (nn.Tanh, lambda _, y: y.abs() > 0.99),
    (nn.Sigmoid, lambda _, y: (y - 0.5).abs() > 0.49),
    (nn.GELU, lambda x, _: x < -3.0),
    (nn.SiLU, lambda x, _: x < -6.0),
)
"""The slope is next to zero: tanh' = 1 - y², sigmoid' = y (1 - y); gelu'(-3) and silu'(-6) are -0.012."""


def _inactive(module: nn.Module) -> Inactive | None:
    for kind, inactive in _INACTIVE:
        if isinstance(module, kind):
            in_place = kind is nn.SiLU and module.inplace  # its input is gone by the time a hook sees it
            return None if in_place else inactive
    if "gelu" in type(module).__name__.lower():  # transformers has several of its own
        return dict(_INACTIVE)[nn.GELU]
    return None


def is_activation(module: nn.Module) -> bool:
    """Whether the share of inactive units of `module` can be told."""
    return _inactive(module) is not None


def is_compiled(module: nn.Module) -> bool:
    """Whether `module` runs as compiled code, by ``torch.compile(module)`` or ``module.compile()``."""
    return getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in dict(
        module.named_children()
    )


class _Watched:
    """What one module's calls add up to, on the module's own device."""

    def __init__(self, layer: int | None, inactive: Inactive | None) -> None:
        self.layer = layer
        self._inactive = inactive
        self.reset()

    def reset(self) -> None:
        self.units = 0
        self.count: torch.Tensor | None = None
        self.finite: torch.Tensor | None = None

    def see(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        """Take in one call, if it is one of the training."""
        if not module.training or torch.compiler.is_compiling():
            return
        y = _first_tensor(output)
        if y is None:
            return
        with torch.no_grad():
            # One pass and no temporary: a sum is finite only if every value is.
            finite = torch.isfinite(y.sum(dtype=torch.promote_types(y.dtype, torch.float32)))
            self.finite = finite if self.finite is None else self.finite & finite
            x = _first_tensor(inputs)
            if self._inactive is not None and x is not None:
                count = torch.count_nonzero(self._inactive(x, y))
                self.count = count if self.count is None else self.count + count
                self.units += y.numel()


class ActivationProbe:
    """Hooks into modules for one step at a time; between sampled steps a model has no hook of this."""

    def __init__(
        self, activations: Sequence[tuple[nn.Module, int]], modules: Sequence[nn.Module], layers: int
    ) -> None:
        """Prepare, without a hook.

        Args:
            activations: modules whose inactive units are counted, and the layer of each.
            modules: further modules whose output is checked for non-finite values.
            layers: how many layers there are.
        """
        known = {id(module) for module, _ in activations}
        self._watched = [(module, _Watched(layer, _inactive(module))) for module, layer in activations]
        self._watched += [(module, _Watched(None, None)) for module in modules if id(module) not in known]
        self._layers = layers
        self._handles: list[RemovableHandle] = []
        self._failed = False

    def arm(self) -> None:
        """Watch the forward passes from here to `disarm`."""
        if self._handles or self._failed:
            return
        for module, watched in self._watched:
            self._handles.append(module.register_forward_hook(self._guarded(watched)))

    def disarm(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def take(self) -> tuple[list[int], torch.Tensor] | None:
        """Return what was seen, and forget it.

        Returns:
            The layers that were seen, and a float32 vector: 1 if anything was not finite, else 0, then the
            share of inactive units of each of these layers. None where no forward pass was seen.
        """
        if not self._handles:
            return None
        self.disarm()
        finite = [w.finite for _, w in self._watched if w.finite is not None]
        units = [0] * self._layers
        counts: dict[int, torch.Tensor] = {}
        for _, watched in self._watched:
            if watched.layer is not None and watched.count is not None:
                device = finite[0].device
                count = watched.count.to(device, torch.float32, non_blocking=True)
                layer = watched.layer
                counts[layer] = counts[layer] + count if layer in counts else count
                units[layer] += watched.units
            watched.reset()
        if not finite:
            return None
        device = finite[0].device
        all_finite = torch.stack([flag.to(device, non_blocking=True) for flag in finite]).all()
        seen = sorted(counts)
        shares = [counts[layer] / max(1, units[layer]) for layer in seen]
        return seen, torch.stack([(~all_finite).to(torch.float32), *shares])

    def _guarded(self, watched: _Watched) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            try:
                watched.see(module, inputs, output)
            except Exception as error:  # noqa: BLE001 - never into the model's forward pass
                if not self._failed:
                    self._failed = True
                    logger.warning(
                        "activations are not measured any more: %s failed with %r.",
                        type(module).__name__,
                        error,
                    )

        return hook


def _first_tensor(value: Any) -> torch.Tensor | None:
    """Return the first floating-point tensor of a module's input or output."""
    if isinstance(value, torch.Tensor):
        return value.detach() if value.is_floating_point() else None
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return next((v.detach() for v in items if isinstance(v, torch.Tensor) and v.is_floating_point()), None)
