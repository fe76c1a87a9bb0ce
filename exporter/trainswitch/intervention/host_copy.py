"""Copies of a state in host memory, of nothing but what ``torch.load(weights_only=True)`` accepts."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict
from typing import Any

from trainswitch.errors import CheckpointError
from trainswitch.intervention import shards

PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})


def host_copy(value: Any, where: str) -> Any:
    """Copy `value` in depth, tensors to host memory; `where` names it in the error."""
    import torch

    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter):
        return value.detach().to("cpu", copy=True)
    if shards.is_dtensor(value):
        return shards.shard_of(value)
    if kind in (dict, OrderedDict, Counter):
        copied = kind(
            {
                host_copy(key, f"{where} key"): host_copy(item, f"{where}[{key!r}]")
                for key, item in value.items()
            }
        )
        if kind is OrderedDict:  # a module's state_dict() has its version numbers as an attribute
            vars(copied).update(host_copy(vars(value), f"{where}.__dict__"))
        return copied
    if kind in (list, tuple, set):
        if PLAIN_TYPES.issuperset(map(type, value)):  # the fast way through a million indices
            return kind(value)
        return kind(host_copy(item, f"{where}[{index}]") for index, item in enumerate(value))
    if kind in PLAIN_TYPES or kind in (torch.Size, torch.dtype, torch.device):
        return value
    if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic):
        return value.item()  # a schedule computed with NumPy makes the learning rate one of these
    raise CheckpointError(
        "state",
        f"{where} is a {type_name(value)}, which a checkpoint cannot hold: let state_dict() return tensors, "
        "numbers, strings and plain lists, tuples, sets or dicts of them.",
    )


def type_name(value: object) -> str:
    """Return the name of a value's type, for people."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
