"""Shards of tensors that are spread over the ranks, saved and loaded without asking other ranks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainswitch.errors import CheckpointError
from trainswitch.intervention.shards import SHARD_KEY, local
from trainswitch.intervention.training_state import TrainingState

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no torch.distributed")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone; the group of several is in tests/exporter/distributed."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Run:
    """A small training with FSDP2, of whose weights one is frozen and not sharded."""

    def __init__(self, *, sharded: bool = True) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
        if sharded:
            fully_shard(self.model, mesh=init_device_mesh("cpu", (1,)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.state = TrainingState(model=self.model, optimizer=self.optimizer, ranks=1)

    def local(self) -> list[torch.Tensor]:
        """This rank's shards of the parameters, as they are."""
        return [local(parameter) for parameter in self.model.parameters()]

    def train(self, steps: int) -> list[float]:
        """Take steps; return the losses."""
        losses = []
        for _ in range(steps):
            loss = (self.model(torch.randn(8, 3)) - 1.0).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def through_file(captured: dict[str, Any]) -> dict[str, Any]:
    """Save and load as the checkpoint store does."""
    buffer = io.BytesIO()
    torch.save(captured, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, map_location="cpu", weights_only=True)
    return loaded


def test_shards_go_through_a_file_and_back(group: None) -> None:
    """A fresh run without moments yet goes on bit by bit, and its parameters stay the same objects."""
    run = Run()
    run.train(5)
    captured = through_file(run.state.capture({"step": 5}))
    assert captured["meta"] == {"step": 5, "ranks": 1}
    assert captured["model"]["0.weight"][SHARD_KEY].shape == (5, 3)
    expected = run.train(5)

    fresh = Run()
    weights = list(fresh.model.parameters())
    fresh.state.restore(captured)
    assert fresh.train(5) == expected
    assert all(ours is theirs for ours, theirs in zip(weights, fresh.model.parameters(), strict=True))
    fresh.state.restore(captured)  # it is not worn out by the training since
    assert fresh.train(5) == expected


def _change_placements(captured: dict[str, Any]) -> None:
    captured["model"]["0.weight"]["placements"] = ["R"]


def _change_mesh(captured: dict[str, Any]) -> None:
    captured["model"]["0.weight"].update(mesh=[4], coordinate=[3])


def _change_shape(captured: dict[str, Any]) -> None:
    captured["model"]["0.weight"]["shape"] = [7, 3]


def _change_dtype(captured: dict[str, Any]) -> None:
    captured["model"]["0.weight"][SHARD_KEY] = torch.zeros(5, 3, dtype=torch.float64)


def _make_whole(captured: dict[str, Any]) -> None:
    captured["model"]["0.weight"] = torch.zeros(5, 3)


def _change_moment(captured: dict[str, Any]) -> None:
    captured["optimizer"]["state"][0]["exp_avg"]["placements"] = ["R"]


def _change_ranks(captured: dict[str, Any]) -> None:
    captured["meta"]["ranks"] = 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            _change_placements,
            r"model key '0.weight' has placements \['R'\] in the checkpoint and \['S\(0\)'\]",
        ),
        (_change_mesh, r"model key '0.weight' has mesh \[4\] in the checkpoint and \[1\] here"),
        (_change_shape, r"model key '0.weight' has shape \[7, 3\] in the checkpoint and \[5, 3\] here"),
        (_change_dtype, r"model key '0.weight' has dtype torch.float64 in the checkpoint and torch.float32"),
        (_make_whole, r"model key '0.weight' is whole in the checkpoint and a shard here"),
        (_change_moment, r"optimizer\['state'\]\[0\] key 'exp_avg' has placements \['R'\]"),
        (_change_ranks, r"its state is spread over 4 ranks, and this run's over 1"),
    ],
    ids=lambda value: getattr(value, "__name__", "").lstrip("_"),
)
def test_shards_that_do_not_fit_change_nothing(
    change: Callable[[dict[str, Any]], None], sentence: str, group: None
) -> None:
    """Another layout is found before anything is overwritten, for moments that a fresh run has not, too."""
    run = Run()
    run.train(2)
    captured = run.state.capture({})
    change(captured)
    fresh = Run()
    before = [weight.clone() for weight in fresh.local()]

    with pytest.raises(CheckpointError, match=sentence):
        fresh.state.restore(captured)

    assert all(map(torch.equal, before, fresh.local()))


def test_a_checkpoint_of_shards_does_not_fit_a_whole_model(group: None) -> None:
    """Nor the other way round."""
    sharded, whole = Run(), Run(sharded=False)
    with pytest.raises(CheckpointError, match=r"'0\.weight' is a shard in the checkpoint and whole here"):
        whole.state.restore(sharded.state.capture({}))
    with pytest.raises(CheckpointError, match=r"'0\.weight' is whole in the checkpoint and a shard here"):
        sharded.state.restore(whole.state.capture({}))


def test_nan_in_a_shard_is_found(group: None) -> None:
    """Shards are judged as whole tensors are."""
    run = Run()
    run.train(1)
    with torch.no_grad():
        run.local()[0][2, 1] = float("nan")
    assert run.state.nonfinite(run.state.capture({})).startswith("model['0.weight']")
