"""One of two ranks whose steps are guarded, for test_guard.py: prints as JSON what became of each case."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from tests.exporter.conftest import samples
from tests.exporter.probes.conftest import rendered
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import trainswitch
from trainswitch.intervention import guard, rank_group
from trainswitch.monitor import Monitor
from trainswitch.probes.norms import local_part

Poison = Callable[[torch.nn.Module], None]

RANK = int(os.environ.get("RANK", "0"))
CONFIG = {
    "server": {"port": 0, "linger_seconds": 0.0},
    "checkpoint": {"interval_steps": 0},
}
lines: list[str] = []


class Lines(logging.Handler):
    """Keeps what is logged of the guard."""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        if "the guard " in record.getMessage():
            lines.append(record.getMessage())


def build() -> torch.nn.Module:
    """The same model on both ranks."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def one_shard(model: torch.nn.Module) -> None:
    """Make one gradient of one rank not a number."""
    if RANK == 1:
        gradient = next(model.parameters()).grad
        assert gradient is not None
        local_part(gradient).view(-1)[0] = math.nan


def held(model: torch.nn.Module) -> list[Any]:
    """What this rank holds of the weights, exactly."""
    return [local_part(parameter).tolist() for parameter in model.parameters()]


def exported(switch: Monitor, name: str, **labels: str) -> float | None:
    """One series of this rank."""
    return samples(rendered(switch)).get((name, frozenset(labels.items())))


def case(
    name: str,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    setting: str | None = None,
    poison: Poison = one_shard,
    attached: bool = True,
) -> dict[str, Any]:
    """Train three steps, poison the gradients of the second, and tell what moved and what was counted."""
    lines.clear()
    switch = (
        trainswitch.attach(model, optimizer, run=name, config=CONFIG, guard=setting) if attached else None
    )
    moved = []
    for step in range(3):
        before = held(model)
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8) * (RANK + 1)).square().mean()
        loss.backward()
        if step == 1:
            poison(model)
        optimizer.step()
        if switch is not None:
            switch.step(loss)
        moved.append(held(model) != before)
    found: dict[str, Any] = {
        "moved": moved,
        "finite": all(local_part(parameter).isfinite().all().item() for parameter in model.parameters()),
        "weights": held(model),
        "lines": list(lines),
    }
    if switch is not None:
        assert switch._guard is not None
        found |= {
            "guarded": switch.guarded,
            "reduces": switch._guard._ranks.reduces,
            "skipped": exported(switch, "train_skipped_steps_total", reason="guard"),
            "nonfinite": exported(switch, "train_nonfinite_total", source="grad"),
        }
        switch.close()
    return found


def sharded(*, fused: bool = False) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model under FSDP2."""
    model = build()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)


def broken(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A rank that cannot look at its own gradients any more."""
    check = trainswitch.probes.gradients.GradientNorm.check  # type: ignore[attr-defined]

    def fail(_: Any) -> Any:
        raise ValueError("cannot look")

    if RANK == 0:
        trainswitch.probes.gradients.GradientNorm.check = fail  # type: ignore[attr-defined]
    try:
        return case("blind", model, optimizer)
    finally:
        trainswitch.probes.gradients.GradientNorm.check = check  # type: ignore[attr-defined]


def main(store: str) -> None:
    """Go through the cases, and print the result."""
    logging.getLogger("trainswitch").addHandler(Lines())
    logging.getLogger("trainswitch").setLevel(logging.INFO)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=RANK, world_size=2)
    found = {"sharded": case("sharded", *sharded())}

    flat = FullyShardedDataParallel(build(), device_id=torch.device("cpu"))
    found["flat"] = case("flat", flat, torch.optim.AdamW(flat.parameters(), lr=0.1))

    whole = build()  # what the sharded model is compared with: two good steps
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.1)
    data = torch.nn.parallel.DistributedDataParallel(whole)
    for _ in range(2):
        optimizer.zero_grad()
        data(torch.ones(2, 8) * (RANK + 1)).square().mean().backward()
        optimizer.step()
    found["reference"] = {"weights": held(whole)}

    choose = guard.choose
    guard.choose = lambda *_: (guard.Way.DEVICE, "")  # as on a GPU
    found["device"] = case("device", *sharded(fused=True))
    guard.choose = choose

    replica = torch.nn.parallel.DistributedDataParallel(build())

    def everywhere(model: torch.nn.Module) -> None:  # a NaN before the all-reduce is on all ranks after it
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, math.nan)

    found["replicated"] = case(
        "replicated", replica, torch.optim.AdamW(replica.parameters()), poison=everywhere
    )

    for setting in ("auto", "on"):
        model = build()
        found[f"unknown {setting}"] = case(
            f"unknown-{setting}", model, torch.optim.AdamW(model.parameters()), setting=setting
        )
    found["blind"] = broken(*sharded())
    rank_group.ASSEMBLE_SECONDS = 0.5
    found["alone"] = case("alone", *sharded(), attached=RANK == 0)
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
