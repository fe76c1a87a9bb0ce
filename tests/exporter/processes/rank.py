"""One rank of a run under torchrun: ``rank.py MODE FOLDER``.

The modes wait for files that the test makes in FOLDER, so that the test decides when something happens.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import trainswitch
from trainswitch.monitor import Monitor

SETTINGS = {"server": {"port": 0, "linger_seconds": 0.0}}
STEPS = 20


def wait_for(path: Path) -> None:
    """Return once `path` exists."""
    while not path.exists():
        time.sleep(0.02)


def train(switch: Monitor, folder: Path) -> None:
    """Step together until rank 0 sees the file ``end``."""
    done = torch.zeros(1)
    while not done.item():
        done.fill_(float(dist.get_rank() == 0 and (folder / "end").exists()))
        dist.all_reduce(done)
        switch.step(1.0 + dist.get_rank())
        time.sleep(0.02)


def stick(switch: Monitor, folder: Path) -> None:
    """Have rank 0 wait in an all_reduce until rank 1 sees the file ``join``."""
    value = torch.ones(4)
    for _ in range(STEPS):
        dist.all_reduce(value)
        dist.reduce_scatter(torch.empty(2), [torch.ones(2), torch.ones(2)])
        dist.all_reduce(value, async_op=True).wait()
        switch.step(1.0)
    (folder / f"ready-{dist.get_rank()}").touch()
    if dist.get_rank() == 1:
        wait_for(folder / "join")
    dist.all_reduce(value)
    wait_for(folder / "end")


def stick_in_backward(switch: Monitor, folder: Path) -> None:
    """Have rank 0 wait in DistributedDataParallel's backward pass until rank 1 sees the file ``join``."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(STEPS):
        model(torch.ones(2, 4)).sum().backward()
        switch.step(1.0)
    (folder / f"ready-{dist.get_rank()}").touch()
    if dist.get_rank() == 1:
        wait_for(folder / "join")
    model(torch.ones(2, 4)).sum().backward()
    switch.step(1.0)
    wait_for(folder / "end")


def main() -> None:
    """Run one rank from its attachment to its orderly end."""
    mode, folder = sys.argv[1], Path(sys.argv[2])
    dist.init_process_group("gloo")
    with trainswitch.attach(run="ranks", config=SETTINGS) as switch:
        {"train": train, "stick": stick, "stick_in_backward": stick_in_backward}[mode](switch, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
