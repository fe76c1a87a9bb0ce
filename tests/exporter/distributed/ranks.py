"""Ranks of a data-parallel run on this machine: ``ranks.py MODE RANKS FOLDER``.

One process imports PyTorch and forks the ranks, because importing it is most of their life. Each writes what
happens to it to ``FOLDER/rank-<n>.jsonl``, and waits at its gates for files that the test makes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import BaseModel, ConfigDict

import trainswitch
from trainswitch.errors import TrainswitchError
from trainswitch.intervention import file_group, rank_group
from trainswitch.monitor import Monitor

STEPS = 120
GATE = 40
RESUMED = 60
PATIENCE_SECONDS = 10.0
ASSEMBLE_SECONDS = 15.0
SILENT_SECONDS = 6.0
RUN = "ranks"


class Mark(BaseModel):
    """What the ranks' own action takes."""

    model_config = ConfigDict(extra="forbid")

    word: str


class Stream:
    """The numbers of a rank's batches, from 1 on; the next iterator begins at a position that was loaded."""

    def __init__(self, rank: int) -> None:
        """Begin at the first."""
        self.rank, self.position = rank, 0

    def __iter__(self) -> Iterator[int]:
        """Count on."""
        for number in itertools.count(self.position + 1):
            self.position = number
            yield number

    def state_dict(self) -> dict[str, int]:
        """Where the rank stands in its data."""
        return {"rank": self.rank, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go there."""
        assert state["rank"] == self.rank, "another rank's position"
        self.position = state["position"]


class Rank:
    """One rank: its model, its data by step, and its diary."""

    def __init__(self, rank: int, ranks: int, folder: Path, *, grouped: bool, sharded: bool = False) -> None:
        """Begin the diary, and join the process group where there is to be one."""
        self.rank, self.ranks, self.folder, self.sharded = rank, ranks, folder, sharded
        self.diary = (folder / f"rank-{rank}.jsonl").open("a", buffering=1)
        self.say(pid=os.getpid())
        self._ended = 0
        self.grouped = grouped
        if grouped:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=60),
            )

    def say(self, **facts: Any) -> None:
        """Write a line."""
        self.diary.write(json.dumps(facts) + "\n")

    def end_session(self) -> None:
        """Wait for every rank to end its session: a launcher starts none again before all have ended."""
        self._ended += 1
        ends = [self.folder / f"ended-{self._ended}-{rank}" for rank in range(self.ranks)]
        ends[self.rank].touch()
        deadline = time.monotonic() + 60.0
        while not all(end.exists() for end in ends):
            assert time.monotonic() < deadline, "another rank did not end its session"
            time.sleep(0.01)  # other processes say it by files

    def build(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Return the same model on every rank, and seed the rank's own random numbers."""
        torch.manual_seed(1)
        model: torch.nn.Module = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
        )
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            for module in model.children():
                fully_shard(module)
            fully_shard(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        if self.grouped and not self.sharded:
            model = torch.nn.parallel.DistributedDataParallel(model)
        torch.manual_seed(100 + self.rank)
        random.seed(200 + self.rank)
        return model, optimizer

    def train_step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
        """Train on the batch of `step`, with noise from two generators of this rank."""
        data = torch.Generator().manual_seed(1000 * step + self.rank)
        batch = torch.randn(4, 8, generator=data)
        loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean() * (1.0 + random.random())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached

    def wait_for(self, name: str) -> None:
        """Return once the test has made the file `name`."""
        self.say(waits=name)
        while not (self.folder / name).exists():
            time.sleep(0.02)

    def attach(self, *parts: Any, checkpoints: Path | None = None, data: Stream | None = None) -> Monitor:
        """Attach a monitor that writes in the diary what is carried out here."""
        config = {
            "server": {"port": 0, "linger_seconds": 0.0},
            "checkpoint": {
                "folder": checkpoints or self.folder / "checkpoints",
                "interval_steps": 10,
                "probation_steps": 5,
                "keep": 3,
            },
            "control": {"poll_interval_seconds": 0.05},
        }
        switch = trainswitch.attach(*parts, run=RUN, config=config, data=data)
        interventions = switch._interventions
        act: Callable[[Any], str | None] = interventions.act

        def told(command: Any) -> str | None:
            self.say(acted=command.action, step=interventions.step)
            return act(command)

        interventions.act = told  # type: ignore[method-assign]
        return switch

    def own_weights(self, model: torch.nn.Module) -> list[float]:
        """Return what this rank holds of the weights, without asking others."""
        weights = (getattr(weight, "to_local", lambda w=weight: w)() for weight in model.parameters())
        return [value for weight in weights for value in weight.detach().flatten().tolist()]

    def digest(self, model: torch.nn.Module) -> list[float]:
        """Return every weight, exactly."""
        weights = (getattr(weight, "full_tensor", lambda w=weight: w)() for weight in model.parameters())
        return [value for weight in weights for value in weight.detach().flatten().tolist()]


def train(me: Rank) -> None:
    """Train without a monitor, then the same with one, through gates at which the test commands."""
    model, optimizer = me.build()
    for step in range(1, STEPS + 1):
        me.say(bare=step, loss=me.train_step(model, optimizer, step).item())
    me.say(bare_weights=me.digest(model))

    model, optimizer = me.build()
    stream = Stream(me.rank)
    with me.attach(model, optimizer, data=stream) as switch:
        for number in switch.batches(stream):
            step = switch.current_step + 1
            loss = me.train_step(model, optimizer, number)
            me.say(step=step, loss=loss.item())
            switch.step(loss)
            if step == STEPS and switch.current_step == STEPS:
                me.say(weights=me.digest(model))
                me.wait_for("end")
            elif switch.current_step == GATE:
                me.wait_for("gate")
        me.say(stopped=switch.current_step)


def resume(me: Rank) -> None:
    """Train without a monitor; then again, in two sessions, the second of which restores; then fail to."""
    model, optimizer = me.build()
    for step in range(1, RESUMED + 1):
        me.train_step(model, optimizer, step)
    me.say(bare_weights=me.digest(model))

    model, optimizer = me.build()
    with me.attach(model, optimizer) as switch:
        me.say(first=switch.restore())
        while switch.current_step < GATE + 1:
            switch.step(me.train_step(model, optimizer, switch.current_step + 1))
            assert switch._store is not None
            switch._store.finish()  # so that no save is in the way of the next
    me.end_session()

    model, optimizer = me.build()
    with me.attach(model, optimizer) as switch:
        me.say(restored=switch.restore(), restored_weights=me.digest(model))
        while switch.current_step < RESUMED:
            switch.step(me.train_step(model, optimizer, switch.current_step + 1))
        me.say(weights=me.digest(model))
        try:
            switch.restore()
        except TrainswitchError as error:
            me.say(late=str(error))
    me.end_session()

    def wrong(name: str, switch: Monitor, step: int | None) -> None:
        before = me.own_weights(model)
        try:
            switch.restore(step)
        except TrainswitchError as error:
            me.say(**{name: str(error)}, unchanged=me.own_weights(model) == before)

    model, optimizer = me.build()
    with me.attach(model, optimizer, checkpoints=me.folder / "elsewhere" if me.rank == 1 else None) as switch:
        wrong("elsewhere", switch, None)
    me.end_session()
    with me.attach(model, optimizer) as switch:
        wrong("unlike", switch, 40 + 10 * me.rank)
    me.end_session()
    with me.attach(model, optimizer) as switch:
        wrong("absent", switch, 7)
    me.end_session()
    rank_group.ASSEMBLE_SECONDS = 2.0
    with me.attach(model, optimizer) as switch:
        if me.rank == 0:
            wrong("half", switch, None)
        else:
            switch.step(1.0)
    me.say(ended=True)


def independent(me: Rank) -> None:
    """Step without collectives of the run's own until the test ends it."""
    switch = me.attach(*me.build())
    switch.register_action("mark", lambda mark: me.say(marked=mark.word, at=switch.current_step), Mark)
    step_until_the_end(me, switch)


def unlike(me: Rank) -> None:
    """Do so where rank 1 sees other checkpoints, has no optimizer and has not registered an action."""
    model, optimizer = me.build()
    if me.rank == 1:
        step_until_the_end(me, me.attach(model, checkpoints=me.folder / "elsewhere"))
    else:
        switch = me.attach(model, optimizer)
        switch.register_action("mark", lambda mark: me.say(marked=mark.word), Mark)
        step_until_the_end(me, switch)


def alone(me: Rank) -> None:
    """Do so where only rank 0 has a monitor."""
    parts = me.build()
    if me.rank == 0:
        step_until_the_end(me, me.attach(*parts))
    else:
        me.wait_for("end")


def files(me: Rank) -> None:
    """Step without a process group, each rank at a pace of its own, until a stop or the end."""
    model, optimizer = me.build()
    with me.attach(model, optimizer) as switch:
        while not switch.should_stop and not (me.folder / "end").exists():
            switch.step(me.train_step(model, optimizer, switch.current_step + 1))
            time.sleep(0.02 * (1 + me.rank))
    me.say(ended=True, weights=me.digest(model))


def step_until_the_end(me: Rank, switch: Monitor) -> None:
    """Step until the test has made the file ``end``."""
    with switch:
        while not (me.folder / "end").exists():
            switch.step(1.0)
            time.sleep(0.02)
    me.say(ended=True)


MODES = {
    "resume": resume,
    "resume_sharded": resume,
    "resume_files": resume,
    "train": train,
    "sharded": train,
    "independent": independent,
    "unlike": unlike,
    "alone": alone,
    "files": files,
}


def main() -> None:
    """Fork the ranks, and exit as the worst of them does."""
    mode, ranks, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
            rank_group.PATIENCE_SECONDS = PATIENCE_SECONDS
            rank_group.ASSEMBLE_SECONDS = 2.0 if mode == "alone" else ASSEMBLE_SECONDS
            file_group.SILENT_SECONDS = SILENT_SECONDS
            grouped = ranks > 1 and not mode.endswith("files")
            me = Rank(rank, ranks, folder, grouped=grouped, sharded=mode.endswith("sharded"))
            MODES[mode](me)
            return
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(max(os.waitstatus_to_exitcode(end) for end in ends))


if __name__ == "__main__":
    main()
