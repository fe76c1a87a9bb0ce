"""Whether a captured state fits a run: parts, keys, shapes, dtypes and shards, compared before loading."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from trainswitch.errors import CheckpointError
from trainswitch.intervention import shards
from trainswitch.intervention.host_copy import type_name

if TYPE_CHECKING:
    import torch

    from trainswitch.intervention.training_state import HasStateDict

EXTRA_STATE_KEY = "_extra_state"
"""Suffix under which ``torch.nn.Module.state_dict`` files what ``get_extra_state`` returned."""


def check_state(
    captured: Any, parts: Mapping[str, HasStateDict], ranks: int, leave: Set[str] = frozenset()
) -> None:
    """Compare a captured state with the live objects; nothing is changed.

    Args:
        captured: see `TrainingState.capture`.
        parts: the live objects by name.
        ranks: over how many ranks their state is spread.
        leave: names of parts that the captured state may hold besides.

    Raises:
        CheckpointError: (``state``) it does not fit them.
    """
    if not isinstance(captured, dict) or not {"meta", "rng"} <= captured.keys():
        raise _mismatch("it holds no 'meta' and 'rng', so trainswitch did not write it")
    if (saved_by := captured["meta"].get("ranks", 1)) != ranks:
        raise _mismatch(
            f"its state is spread over {saved_by} ranks, and this run's over {ranks} (1: every rank holds it)"
        )
    saved, live = captured.keys() - {"meta", "rng"} - leave, parts.keys()
    for name in sorted(live - saved):
        raise _mismatch(f"it holds no {name!r}, which this run has")
    for name in sorted(saved - live):
        raise _mismatch(f"it holds {name!r}, which this run does not have")
    _check_rng(captured["rng"])
    for name, part in parts.items():
        _check_part(name, part, captured[name])


def _check_part(name: str, part: HasStateDict, saved: dict[str, Any]) -> None:
    import torch

    if isinstance(part, torch.nn.Module):
        live = part.state_dict()
        _check_keys(name, live, saved)
        _check_tensors(name, live, saved)
    elif isinstance(part, torch.optim.Optimizer):
        _check_optimizer(name, part, saved)
    elif name == "scheduler":
        _check_keys(name, part.state_dict(), saved)
    # Any other state may rightly change its keys and shapes over a run (a sampler's remaining indices).


def _check_rng(saved: Any) -> None:
    import torch

    if not isinstance(saved, dict) or not {"python", "torch", "cuda"} <= saved.keys():
        raise _mismatch("its rng is not what trainswitch writes")
    if (there := len(saved["cuda"])) > (here := torch.cuda.device_count()):
        raise _mismatch(f"rng is of {there} CUDA devices and this process sees {here}")


def _check_optimizer(name: str, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    live = optimizer.state_dict()
    _check_keys(name, live, saved)
    groups = live["param_groups"], saved["param_groups"]
    if len(groups[0]) != len(groups[1]):
        raise _mismatch(
            f"{name} has {len(groups[1])} parameter groups in the checkpoint and {len(groups[0])} here"
        )
    for index, (ours, theirs) in enumerate(zip(*groups, strict=True)):
        where = f"{name}['param_groups'][{index}]"
        _check_keys(where, ours, theirs)
        if len(ours["params"]) != len(theirs["params"]):
            raise _mismatch(
                f"{where} has {len(theirs['params'])} parameters in the checkpoint "
                f"and {len(ours['params'])} here"
            )
    # A fresh optimizer has no state yet, and one that never saw a parameter's gradient has none for it.
    for parameter in live["state"].keys() & saved["state"].keys():
        _check_tensors(f"{name}['state'][{parameter}]", live["state"][parameter], saved["state"][parameter])
    parameters = shards.parameters_of(optimizer, saved)
    for parameter, state in saved["state"].items():
        for key, value in state.items():
            if shards.is_shard(value):
                where = f"{name}['state'][{parameter}] key {key!r}"
                _check_shard(where, parameters[parameter], value, shape=False)


def _check_keys(name: str, live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for key in live:
        if key not in saved:
            raise _mismatch(f"{name} has no key {key!r} in the checkpoint")
    for key in saved:
        if key not in live:
            raise _mismatch(f"{name} has a key {key!r} only in the checkpoint")


def _check_tensors(name: str, live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    import torch

    for key in filter(saved.__contains__, live):
        ours, theirs = live[key], saved[key]
        if str(key).endswith(EXTRA_STATE_KEY) or not isinstance(ours, torch.Tensor):
            continue
        if shards.is_dtensor(ours) or shards.is_shard(theirs):
            _check_shard(f"{name} key {key!r}", ours, theirs)
            continue
        if not isinstance(theirs, torch.Tensor):
            raise _mismatch(
                f"{name} key {key!r} is a {type_name(theirs)} in the checkpoint and a tensor here"
            )
        if ours.shape != theirs.shape:
            raise _mismatch(
                f"{name} key {key!r} has shape {tuple(theirs.shape)} in the checkpoint "
                f"and {tuple(ours.shape)} here"
            )
        if ours.dtype != theirs.dtype:
            raise _mismatch(
                f"{name} key {key!r} has dtype {theirs.dtype} in the checkpoint and {ours.dtype} here"
            )


def _check_shard(where: str, ours: Any, theirs: Any, *, shape: bool = True) -> None:
    if not shards.is_dtensor(ours) or not shards.is_shard(theirs):
        raise _mismatch(
            f"{where} is {'a shard' if shards.is_shard(theirs) else 'whole'} in the checkpoint "
            f"and {'a shard' if shards.is_dtensor(ours) else 'whole'} here"
        )
    if difference := shards.difference(ours, theirs, shape=shape):
        raise _mismatch(f"{where} has {difference}")
    dtypes = theirs[shards.SHARD_KEY].dtype, ours.dtype
    if shape and dtypes[0] != dtypes[1]:
        raise _mismatch(f"{where} has dtype {dtypes[0]} in the checkpoint and {dtypes[1]} here")


def _mismatch(difference: str) -> CheckpointError:
    return CheckpointError(
        "state",
        f"the checkpoint does not fit this run: {difference}; nothing was changed: "
        "choose a checkpoint of the same model, optimizer, scheduler and state.",
    )
