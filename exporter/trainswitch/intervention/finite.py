"""Whether a captured state holds NaN or infinity where a training cannot go on from them."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_JUDGED = ("model", "optimizer")
_PIECE = 32_000
"""Elements at a time: fewer than make PyTorch call in further threads, whose cores the training needs."""


def nonfinite(captured: Any, constants: Set[str] = frozenset()) -> str:
    """Return the place of the first NaN or infinity in the weights or the optimizer's state; empty if none.

    Meant for a thread beside the training: it takes one core and no memory to speak of.

    Args:
        captured: what `TrainingState.capture` returned.
        constants: keys of the model's state in which infinity is normal, a mask say; NaN is not.
    """
    if not isinstance(captured, dict):
        return ""
    for part in _JUDGED:
        for place, tensor in _tensors(captured.get(part), ()):
            found = _worst(tensor)
            constant = part == "model" and place and place[0] in constants
            if found == "NaN" or (found and not constant):
                return f"{part}{''.join(f'[{key!r}]' for key in place)} holds {found}"
    return ""


def _tensors(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, (*place, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _tensors(item, (*place, index))


def _worst(tensor: torch.Tensor) -> str:
    """Return ``NaN``, ``infinity`` or nothing."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return ""
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    found = ""
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE].to(torch.float64)
        if not piece.sum().isfinite():  # which it is for all but huge doubles where every element is
            if piece.isnan().any():
                return "NaN"
            if not piece.isfinite().all():
                found = "infinity"
    return found
