"""A checksum of the weights that is equal on equal replicas, computed on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_PIECE = 2**24
"""Elements summed at a time: narrow ones are widened to 32 bits for it, and that copy must stay small."""


def weight_checksum(parameters: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Return the sum of the weights' 32-bit patterns, modulo 2^32, as two numbers below 2^16.

    Weights of 64 bits have two such patterns; narrower ones are widened with their sign.

    Integer sums do not depend on the order in which a device adds. Shards differ between ranks by design,
    so a DTensor takes part only where every rank of its mesh holds all of it.

    Returns:
        A float32 vector (high half, low half), exact; None where no parameter takes part.
    """
    total: torch.Tensor | None = None
    with torch.no_grad():
        for parameter in parameters:
            local = _whole(parameter)
            if local is None:
                continue
            bits = _bits(local)
            for start in range(0, len(bits), _PIECE):
                # 32-bit integers wrap around, which is the modulo, and need no wider copy.
                value = bits[start : start + _PIECE].sum(dtype=torch.int32).to(torch.int64)
                total = value if total is None else total + value.to(total.device, non_blocking=True)
        if total is None:
            return None
        return torch.stack([(total >> 16) & 0xFFFF, total & 0xFFFF]).to(torch.float32)


def join(halves: list[float]) -> float:
    """Return the checksum, 0 to 2^32 - 1, from its two halves."""
    high, low = halves
    return high * 65536.0 + low


def _whole(parameter: Any) -> torch.Tensor | None:
    """Return the plain tensor that every replica has; None for a shard."""
    if not hasattr(parameter, "to_local"):
        return parameter.detach()  # type: ignore[no-any-return]
    if all(placement.is_replicate() for placement in parameter.placements):
        return parameter.to_local().detach()  # type: ignore[no-any-return]
    return None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    width = plain.element_size()
    return plain.view(torch.int8 if width == 1 else torch.int16 if width == 2 else torch.int32)
