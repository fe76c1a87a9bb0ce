"""One rank's shard of a tensor that is spread over the ranks (a DTensor), as a checkpoint holds it, and back.

Nothing here communicates: a rank copies and fills its own shard only. `torch.distributed.checkpoint` would
plan each save with collectives among all ranks, which would have to run beside the training's own ones or
hold it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SHARD_KEY = "trainswitch.shard"
"""Key of the local tensor in the dict that stands for a shard."""


def is_dtensor(value: Any) -> bool:
    """Whether `value` is a tensor that is spread over the ranks."""
    return hasattr(value, "placements") and hasattr(value, "to_local")


def is_shard(value: Any) -> bool:
    """Whether `value` is what `shard_of` returned."""
    return isinstance(value, dict) and SHARD_KEY in value


def shard_of(tensor: Any) -> dict[str, Any]:
    """Copy this rank's shard of a DTensor to host memory, with what tells where it belongs."""
    return {SHARD_KEY: local(tensor).to("cpu", copy=True), **_layout(tensor), "stride": list(tensor.stride())}


def local(tensor: Any) -> torch.Tensor:
    """Return this rank's shard of a DTensor: its own memory, not a copy."""
    shard: torch.Tensor = tensor.detach().to_local()
    return shard


def fill(tensor: Any, saved: dict[str, Any]) -> None:
    """Overwrite this rank's shard of a DTensor with what was saved."""
    local(tensor).copy_(saved[SHARD_KEY])


def build(saved: dict[str, Any], like: Any) -> Any:
    """Return a DTensor of what was saved, which it takes over, in the layout and on the device of `like`."""
    import torch
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        saved[SHARD_KEY].to(local(like).device),
        like.device_mesh,
        like.placements,
        run_check=False,  # which would ask the other ranks
        shape=torch.Size(saved["shape"]),
        stride=tuple(saved["stride"]),
    )


def parameters_of(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[Any, torch.Tensor]:
    """Return the live parameter for each key of a saved optimizer's state."""
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    live = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return dict(zip(keys, live, strict=True))


def difference(ours: Any, theirs: dict[str, Any], *, shape: bool = True) -> str:
    """Return in what a saved shard does not fit into a DTensor; empty where it fits.

    Args:
        ours: the DTensor.
        theirs: what was saved.
        shape: whether the shapes have to be the same, too.
    """
    here = _layout(ours)
    for what, live in here.items():
        if theirs[what] != live and (shape or what != "shape"):
            return f"{what} {theirs[what]} in the checkpoint and {live} here"
    return ""


def _layout(tensor: Any) -> dict[str, Any]:
    mesh = tensor.device_mesh
    return {
        "shape": list(tensor.shape),
        "mesh": list(mesh.mesh.shape),
        "placements": [str(placement) for placement in tensor.placements],
        "coordinate": list(mesh.get_coordinate() or ()),
    }
