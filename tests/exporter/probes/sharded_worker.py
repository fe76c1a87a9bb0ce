"""One rank of a sharded training, for test_sharded.py: prints as JSON what it exports and what it should."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from tests.exporter.conftest import samples
from tests.exporter.probes.conftest import rendered
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from trainswitch.intervention.commands import ClipGradientsParams
from trainswitch.monitor import Monitor


def build() -> tuple[Any, Any]:
    """A model without and one with DTensors: a sharded weight, a replicated one, and a plain one."""
    models = []
    for placements in (None, {"0.weight": Shard(0), "0.bias": Replicate()}):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2, bias=False))
        if placements is not None:
            mesh = init_device_mesh("cpu", (2,))
            for name, placement in placements.items():
                module, _, attribute = name.rpartition(".")
                owner = model.get_submodule(module)
                whole = getattr(owner, attribute).detach()
                part = torch.nn.Parameter(distribute_tensor(whole, mesh, [placement]))
                setattr(owner, attribute, part)
        models.append(model)
    return models[0], models[1]


def set_gradients(model: torch.nn.Module, gradients: dict[str, torch.Tensor]) -> None:
    """Give each parameter its gradient, in the layout of the parameter."""
    for name, parameter in model.named_parameters():
        whole = gradients[name].clone()
        if isinstance(parameter, DTensor):
            parameter.grad = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        else:
            parameter.grad = whole


def whole_of(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor as all ranks hold it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def exported(monitor: Monitor) -> dict[str, float]:
    """What a scrape of this rank sees of the metrics of gradients, layers and weights."""
    return {
        " ".join((name, *(value for _, value in labels))): value
        for (name, labels), value in samples(rendered(monitor)).items()
        if name.startswith(("train_grad_norm", "train_layer", "train_weight"))
    }


def main(store: str) -> None:
    """Measure, clip and step; print the result."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    whole, sharded = build()
    gradients = {name: torch.randn(p.shape) for name, p in whole.named_parameters()}
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.1, foreach=False)
    config = {
        "server": {"port": 0, "linger_seconds": 0},
        "sampling": {"layers": 1, "weights": 1, "checksum": 1},
        "layers": {"all_ranks": True},
        "checkpoint": {"interval_steps": 0},
    }
    found: dict[str, Any] = {}
    with Monitor(run="sharded", model=sharded, optimizer=optimizer, config=config) as monitor:
        set_gradients(sharded, gradients)
        optimizer.step()
        monitor.step(1.0)
        found["measured"] = exported(monitor)
        set_gradients(sharded, {name: 2.0 * gradient for name, gradient in gradients.items()})
        shards = [p for p in sharded.parameters() if isinstance(p, DTensor)]
        norm = torch.nn.utils.clip_grad_norm_(shards, 1e9)
        assert isinstance(norm, DTensor)
        monitor.step(1.0, grad_norm=norm)
        found["passed"] = exported(monitor)
        monitor._clip.act(ClipGradientsParams(max_norm=0.25, steps=1))
        set_gradients(sharded, gradients)
        optimizer.step()
        monitor.step(1.0)
        found["limited"] = math.sqrt(
            sum(float(whole_of(p.grad).square().sum()) for p in sharded.parameters() if p.grad is not None)
        )
        set_gradients(sharded, gradients)
        optimizer.param_groups[0]["params"] = shards  # torch clips no mixture of DTensors and plain ones
        monitor.clip_grad_norm_(1.0)
        monitor.step(1.0)
        found["clipped"] = exported(monitor)
        left = shards[0].grad
        assert isinstance(left, DTensor)
        found["left"] = float(left.full_tensor().square().sum())
    found["gradients"] = {name: float(g.square().sum()) for name, g in gradients.items()}
    found["weights"] = {name: float(p.detach().square().sum()) for name, p in whole.named_parameters()}
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
