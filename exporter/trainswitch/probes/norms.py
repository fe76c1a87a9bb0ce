"""L2 norms of many tensors by one fused kernel for each device and dtype, and of this rank's share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

_NARROW = (torch.float16, torch.bfloat16)


def is_sharded(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether any of `tensors` is a DTensor."""
    return any(hasattr(tensor, "to_local") for tensor in tensors)


def is_uniform(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether all of `tensors` have one device and one dtype."""
    device, dtype = tensors[0].device, tensors[0].dtype
    return all(tensor.dtype == dtype and tensor.device == device for tensor in tensors)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of `tensor`, without communication."""
    to_local: Any = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor.detach() if to_local is None else to_local().detach()
    return local


def norms(tensors: Sequence[torch.Tensor], *, widen: bool = False) -> torch.Tensor:
    """Return the L2 norm of each tensor as one vector on the first tensor's device, without a sync.

    Args:
        tensors: at least one; plain and dense.
        widen: compute norms of half-precision tensors in single precision.
    """
    if is_uniform(tensors):
        return torch.stack(_fused(tensors, widen=widen))
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(position)
    found: dict[int, torch.Tensor] = {}
    for positions in groups.values():
        found.update(zip(positions, _fused([tensors[i] for i in positions], widen=widen), strict=True))
    dtype = torch.float64 if any(norm.dtype == torch.float64 for norm in found.values()) else torch.float32
    device = tensors[0].device
    return torch.stack([found[i].to(device, dtype, non_blocking=True) for i in range(len(tensors))])


def _fused(tensors: Sequence[torch.Tensor], *, widen: bool) -> list[torch.Tensor]:
    dtype = torch.float32 if widen and tensors[0].dtype in _NARROW else None
    return list(torch._foreach_norm(list(tensors), 2.0, dtype=dtype))  # noqa: SLF001 - what torch's own clipping uses


def weigh(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Scale norms of local parts so that the squares of all ranks add up to the square of the whole.

    A shard counts fully. What several ranks hold alike (``Replicate``, or a plain tensor beside DTensors)
    counts on each of them by its share. Without DTensors, `vector` is returned as it is.
    """
    mesh: Any = next((t.device_mesh for t in tensors if hasattr(t, "device_mesh")), None)
    if mesh is None:
        return vector
    factors = [1.0 / math.sqrt(_replicas(tensor, mesh)) for tensor in tensors]
    if all(factor == 1.0 for factor in factors):
        return vector
    # The factors travel as arguments of the kernel: no copy to the device, so nothing to wait for.
    return torch.stack(torch._foreach_mul(vector.unbind(), factors))  # noqa: SLF001


def share(norm: torch.Tensor) -> torch.Tensor:
    """Return this rank's share of a norm that torch worked out over DTensors, without communication."""
    return local_part(norm) / math.sqrt(_replicas(norm, None))


def _replicas(tensor: Any, mesh: Any) -> int:
    if not hasattr(tensor, "to_local"):
        return int(mesh.size())
    count = 1
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            count *= int(tensor.device_mesh.size(dimension))
    return count
