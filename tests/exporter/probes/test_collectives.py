"""Collective operations are timed, and one that is waited for is seen from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.exporter.conftest import sample
from tests.exporter.torchrun import LONGEST_SECONDS, eventually, scrape, targets, torchrun

from trainswitch.probes.collectives import Collectives, _operation, _Pace
from trainswitch.recording.records import Kind

STEPS = 20
WAITING = "train_collective_waiting_since_timestamp_seconds"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A gloo group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Ring:
    """Keeps the records that would go into the ring."""

    def __init__(self) -> None:
        self.records: list[tuple[int, str, float]] = []

    def append(self, kind: int, step: int, values: tuple[float, ...], *, label: str, at: float = 0.0) -> None:
        """Take one record."""
        self.records.append((kind, label, values[0]))

    @property
    def ended(self) -> list[str]:
        """Operations that ended, in order."""
        return [label for kind, label, _ in self.records if kind == Kind.COLLECTIVE]


def test_every_way_to_wait_is_one_duration(group: None) -> None:
    """A blocking call counts once, and so does a handle, however often it is waited for."""
    ring = Ring()
    imported_before = dist.all_reduce
    collectives = Collectives(ring.append, lambda: 0)
    try:
        imported_before(torch.ones(2))
        dist.barrier()
        work = dist.broadcast(torch.ones(2), 0, async_op=True)
        assert ring.ended == ["all_reduce", "barrier"]
        work.wait()
        work.wait()
        dist.reduce_scatter(torch.empty(2), [torch.ones(2)])
    finally:
        collectives.detach()
    assert ring.ended == ["all_reduce", "barrier", "broadcast", "reduce_scatter"]
    assert all(0.0 <= seconds < 10.0 for _, _, seconds in ring.records)


def test_torch_is_as_before_after_detach(group: None) -> None:
    """Every method that was wrapped is the very object it was, and nothing is recorded any more."""
    before = dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))
    ring = Ring()
    collectives = Collectives(ring.append, lambda: 0)
    assert vars(dist.ProcessGroup)["allreduce"] is not before[0]["allreduce"]
    collectives.detach()
    assert (dict(vars(dist.ProcessGroup)), dict(vars(dist.Work))) == before
    value = torch.full((2,), 3.0)
    dist.all_reduce(value)
    assert value.tolist() == [3.0, 3.0]
    assert ring.records == []


def test_a_wrapper_that_somebody_wrapped_again_goes_on_without_recording(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detaching does not undo what others have put on top."""
    ring = Ring()
    original = vars(dist.ProcessGroup)["allreduce"]
    collectives = Collectives(ring.append, lambda: 0)
    ours = dist.ProcessGroup.allreduce
    monkeypatch.setattr(dist.ProcessGroup, "allreduce", original)  # restored at the end, whatever happens
    theirs: Any = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(dist.ProcessGroup, "allreduce", theirs)
    collectives.detach()
    assert dist.ProcessGroup.allreduce is theirs
    dist.all_reduce(torch.ones(1))
    assert ring.ended == []


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:reduce", "reduce"),
        ("nccl:send 0->1", "send"),
        ("nccl:allreduce_coalesced", "all_reduce"),
        ("nccl:ALLTOALL", "other"),
    ],
)
def test_the_flight_recorders_names_are_folded_to_operations(name: str, op: str) -> None:
    """A label is one of a fixed set, whatever the backend calls the operation."""
    assert _operation(name) == op


def test_the_flight_recorder_is_asked_only_when_steps_stay_out() -> None:
    """A slow but regular run never asks; a stalled one asks soon, then ever more rarely."""
    pace = _Pace(0, now=0.0)
    assert pace.moved(1, now=60.0)
    assert not pace.due(now=60.0 + 179.0)
    assert pace.due(now=60.0 + 181.0)
    assert not pace.due(now=60.0 + 182.0)
    assert pace.moved(2, now=300.0)
    assert pace.moved(3, now=300.1)
    assert [second for second in range(301, 360) if pace.due(now=float(second))] == [304, 307, 313, 325, 349]


@pytest.mark.parametrize("mode", ["stick", "stick_in_backward"])
def test_a_rank_whose_peer_never_joins_is_visible_from_outside(home: Path, mode: str) -> None:
    """Within seconds its endpoint says since when it waits, and for what; its peer's says it does not.

    In a function of torch.distributed as in DistributedDataParallel's backward pass, which C++ runs.
    """
    with torchrun(2, mode, home) as process:

        def ready() -> dict[int, str] | None:
            found = targets(home)
            return found if all((home / f"ready-{rank}").exists() for rank in (0, 1)) else None

        addresses = eventually("both ranks at work", ready, process, home)

        def waiting(rank: int) -> float:
            value = sample(scrape(addresses[rank]), WAITING, op="all_reduce")
            assert value is not None
            return value

        since = eventually("rank 0 waiting", lambda: waiting(0) or None, process, home)
        assert time.time() - since < 20.0
        assert waiting(1) == 0.0
        if mode == "stick":
            text = scrape(addresses[0])
            assert sample(text, "train_collective_seconds_count", op="all_reduce") == 2 * STEPS
            assert sample(text, "train_collective_seconds_count", op="reduce_scatter") == STEPS
            last = sample(text, "train_last_collective_timestamp_seconds", op="all_reduce")
            assert last is not None
            assert last <= since + 0.001
        (home / "join").touch()
        eventually("rank 0 going on", lambda: waiting(0) == 0.0 or None, process, home)
        if mode == "stick":
            text = scrape(addresses[0])
            assert sample(text, "train_collective_seconds_count", op="all_reduce") == 2 * STEPS + 1
            longest = sample(text, "train_collective_seconds_bucket", op="all_reduce", le="0.3")
            assert longest is not None
            assert longest <= 2 * STEPS
        (home / "end").touch()
        assert process.wait(timeout=LONGEST_SECONDS) == 0
