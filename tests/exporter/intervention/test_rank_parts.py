"""Checkpoints of a state that is spread over the ranks: of use with every rank's part, or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainswitch.errors import CheckpointCorrupt, CheckpointError
from trainswitch.intervention import rank_parts
from trainswitch.intervention.checkpoint_writer import SaveResult
from trainswitch.intervention.checkpoints import CheckpointStore
from trainswitch.intervention.follower import FollowerStore

RUN = "run-1"
RANKS = 3


def part(step: int, rank: int, *, moment: str = "", value: float = 1.0) -> dict[str, Any]:
    """What a rank captures of a state that is spread over all."""
    meta = {"step": step, "moment": moment or f"s:{step}", "ranks": RANKS, "statistics": None}
    return {"meta": meta, "rng": {}, "model": {"shard": torch.tensor([value, float(rank), float(step)])}}


class Ranks:
    """The stores of all ranks of one run, in one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / RUN
        self.results: list[SaveResult] = []
        self.lead = CheckpointStore(folder, RUN, keep=2, probation_steps=5, on_saved=self.results.append)
        self.others = [FollowerStore(folder, RUN, rank) for rank in range(1, RANKS)]

    def save(self, step: int, **facts: Any) -> None:
        """Save a step on all ranks, and wait for it."""
        self.lead.advance(step)
        self.lead.save(part(step, 0, **facts), step)
        for rank, store in enumerate(self.others, start=1):
            store.save(part(step, rank, **facts), step)
        self.finish()
        assert [result.error for result in self.results if result.step == step] == [None]

    def finish(self) -> None:
        """Wait until no rank writes or tidies up."""
        self.lead.finish()
        for store in self.others:
            store._end()

    def parts(self, rank: int) -> list[str]:
        """The steps of a rank's parts."""
        return sorted(path.name.partition(".")[0][-3:] for path in (self.folder / f"rank-{rank}").iterdir())

    def loaded(self, rank: int, name: str) -> list[float]:
        """What a rank reads of rank 0's checkpoint `name`."""
        captured, _ = self.others[rank - 1].load(name)
        shard: list[float] = captured["model"]["shard"].tolist()
        return shard


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """Three ranks that have saved nothing."""
    made = Ranks(tmp_path)
    yield made
    made.lead.close()


def test_each_rank_loads_its_own_part(ranks: Ranks) -> None:
    """Rank 0's manifest vouches for every part, the size is that of all, and each rank gets its own back."""
    ranks.save(10)

    captured, entry = ranks.lead.load()
    assert captured["model"]["shard"].tolist() == [1.0, 0.0, 10.0]
    states = [Path(entry.path) / "state.pt", *ranks.folder.glob("rank-*/*/state.pt")]
    assert len(states) == RANKS
    assert entry.size_bytes == sum(path.stat().st_size for path in states)
    for rank in (1, 2):
        assert ranks.loaded(rank, Path(entry.path).name) == [1.0, float(rank), 10.0]


def test_it_appears_when_the_last_part_has_come(ranks: Ranks) -> None:
    """Until then the older checkpoints are what there is, and rank 0's training thread does not wait."""
    ranks.save(10)
    ranks.lead.save(part(20, 0), 20)
    ranks.others[0].save(part(20, 1), 20, wait=True)
    assert ranks.lead.busy
    assert [entry.step for entry in ranks.lead.entries()] == [10]
    ranks.others[1].save(part(20, 2), 20)
    ranks.finish()
    assert [entry.step for entry in ranks.lead.entries()] == [10, 20]


def test_a_part_that_does_not_come_costs_the_checkpoint(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 gives up once nothing grows any more, and says whose part is missing; the next save works."""
    monkeypatch.setattr(rank_parts, "STALLED_SECONDS", 0.2)
    ranks.lead.save(part(10, 0), 10)
    ranks.others[0].save(part(10, 1), 10)
    ranks.finish()

    error = ranks.results[0].error
    assert error is not None
    assert error.reason == "disk"
    assert "step 10 was not saved: rank 2's part has not come" in str(error)
    assert ranks.lead.entries() == ()
    assert not list(ranks.folder.glob(".new-*"))
    monkeypatch.undo()
    ranks.save(20)
    assert [entry.step for entry in ranks.lead.entries()] == [20]


def test_a_part_that_still_grows_is_waited_for(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow rank is waited for as long as its file grows, not for a fixed time."""
    monkeypatch.setattr(rank_parts, "STALLED_SECONDS", 0.4)
    name = rank_parts.part_name(10, "s:10")
    for rank in (1, 2):
        folder = ranks.folder / f"rank-{rank}" / f".new-{name}"
        folder.mkdir(parents=True)
        (folder / "state.pt").write_bytes(b"")
    ranks.lead.save(part(10, 0), 10)
    for _ in range(8):  # twice as long as it waits for one that does not grow
        time.sleep(0.1)
        with (ranks.folder / "rank-1" / f".new-{name}" / "state.pt").open("ab") as handle:
            handle.write(b"more")
    assert ranks.lead.busy
    for rank, store in enumerate(ranks.others, start=1):
        store.save(part(10, rank), 10)
    ranks.finish()
    assert ranks.results[0].error is None


def test_without_a_moment_there_is_nothing_to_pair(ranks: Ranks) -> None:
    """Before the ranks have met, a save fails with a sentence instead of mixing moments."""
    state = part(1, 0)
    state["meta"]["moment"] = ""
    with pytest.raises(CheckpointError, match="step 1 was not saved, because the ranks have not met yet"):
        ranks.lead.save(state, 1, wait=True)


def test_nan_on_one_rank_makes_it_suspect(ranks: Ranks) -> None:
    """A rank that finds NaN in its shard tells rank 0 by its manifest."""
    ranks.save(10)
    ranks.lead.save(part(20, 0), 20)
    ranks.others[0].save(part(20, 1), 20)
    ranks.others[1].save(part(20, 2, value=float("nan")), 20)
    ranks.finish()

    assert [(entry.step, entry.kind) for entry in ranks.lead.entries()] == [
        (10, "probation"),
        (20, "suspect"),
    ]
    (problem,) = ranks.lead.take_problems()
    assert problem.reason == "nonfinite"
    assert "because rank 2's model['shard'] holds NaN" in str(problem)


@pytest.mark.parametrize("damage", ["missing", "truncated", "another"])
def test_without_a_part_a_checkpoint_is_not_used(ranks: Ranks, damage: str) -> None:
    """Rank 0 passes over a checkpoint of which a part is gone or not the right one, and sets it aside."""
    ranks.save(10)
    ranks.save(20)
    ranks.lead.advance(40)
    state = next(ranks.folder.glob("rank-2/step-000000000020.*/state.pt"))
    if damage == "missing":
        state.parent.rename(ranks.folder / "elsewhere")
    elif damage == "truncated":
        os.truncate(state, 100)
    else:
        manifest = state.with_name("manifest.json")
        manifest.write_text(manifest.read_text().replace('"sha256": "', '"sha256": "0'))

    assert ranks.lead.load()[1].step == 10
    (problem,) = ranks.lead.take_problems()
    assert "rank 2's part" in str(problem)
    assert "step-000000000020.corrupt" in str(problem)


def test_a_damaged_part_is_found_by_its_rank(ranks: Ranks) -> None:
    """A flipped bit is found where the part is read; from then on rank 0 does not choose that checkpoint."""
    ranks.save(10)
    ranks.save(20)
    ranks.lead.advance(40)
    state = next(ranks.folder.glob("rank-1/step-000000000020.*/state.pt"))
    content = bytearray(state.read_bytes())
    content[-30] ^= 1
    state.write_bytes(content)

    _, entry = ranks.lead.load()
    assert entry.step == 20
    with pytest.raises(CheckpointCorrupt, match="so the checkpoint is of no use"):
        ranks.others[0].load(Path(entry.path).name)
    assert ranks.lead.load()[1].step == 10


def test_parts_go_with_their_checkpoint(ranks: Ranks) -> None:
    """Rotation deletes what nobody needs on every rank, and never a part that a checkpoint vouches for."""
    for step in range(10, 110, 10):
        ranks.save(step)
    kept = [f"{entry.step:03d}" for entry in sorted(ranks.lead.entries(), key=lambda entry: entry.step)]
    assert len(kept) <= 5
    for rank in (1, 2):
        assert ranks.parts(rank) == kept


def test_a_step_that_is_saved_again_keeps_the_old_parts_until_it_is_there(ranks: Ranks) -> None:
    """After a rollback a part of the same step comes to lie beside the old one, which is still needed."""
    ranks.save(10)
    ranks.lead.save(part(10, 0, moment="s:99", value=2.0), 10)
    ranks.others[0].save(part(10, 1, moment="s:99", value=2.0), 10, wait=True)
    name = "step-000000000010"
    assert ranks.loaded(1, name) == [1.0, 1.0, 10.0]
    ranks.others[1].save(part(10, 2, moment="s:99", value=2.0), 10)
    ranks.finish()
    assert [ranks.loaded(rank, name) for rank in (1, 2)] == [[2.0, 1.0, 10.0], [2.0, 2.0, 10.0]]


def test_parts_for_which_rank_0_has_no_time_do_not_pile_up(ranks: Ranks) -> None:
    """Ranks that save while rank 0 is busy keep few parts, and those of the step that rank 0 is writing."""
    held = threading.Event()
    ranks.lead._writer._judge = lambda _: "" if held.wait(30) else "never"
    ranks.lead.save(part(10, 0), 10)
    for step in range(10, 70, 10):
        for rank, store in enumerate(ranks.others, start=1):
            store.save(part(step, rank), step, wait=True)
            store._end()
    held.set()
    ranks.finish()
    assert ranks.results[0].error is None
    assert [entry.step for entry in ranks.lead.entries()] == [10]
    assert ranks.parts(1) == ranks.parts(2) == ["010", "040", "050", "060"]


def test_a_part_is_kept_when_its_checkpoint_appears_meanwhile(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 publishes a checkpoint just while a rank looks for parts that nobody needs."""
    held = threading.Event()
    ranks.lead._writer._judge = lambda _: "" if held.wait(30) else "never"
    ranks.lead.save(part(10, 0), 10)
    first = ranks.others[0]
    for step in (10, 20, 30):
        first.save(part(step, 1), step, wait=True)
        first._end()
    ranks.others[1].save(part(10, 2), 10, wait=True)
    folders = first._checkpoints.folders

    def just_before() -> list[Path]:
        found = folders()
        held.set()
        ranks.lead.finish()
        return found

    monkeypatch.setattr(first._checkpoints, "folders", just_before)
    first.save(part(40, 1), 40, wait=True)
    first._end()
    assert [entry.step for entry in ranks.lead.entries()] == [10]
    assert ranks.parts(1) == ["010", "020", "030", "040"]


def test_a_part_is_kept_while_its_checkpoint_cannot_be_read(ranks: Ranks) -> None:
    """A file system that fails for a moment must not cost a checkpoint its part."""
    ranks.save(10)
    manifest = next(ranks.folder.glob("step-*")) / "manifest.json"
    away = manifest.with_name("away")
    manifest.rename(away)
    manifest.mkdir()  # which is there and cannot be read
    for step in (20, 30, 40, 50):
        ranks.others[0].save(part(step, 1), step, wait=True)
        ranks.others[0]._end()
    manifest.rmdir()
    away.rename(manifest)
    assert ranks.parts(1) == ["010", "030", "040", "050"]
    assert ranks.loaded(1, manifest.parent.name) == [1.0, 1.0, 10.0]


def test_a_thread_that_cannot_be_started_costs_one_save(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is in progress afterwards, so nobody waits for it, and the next save succeeds."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("no thread")

    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="no thread"):
            ranks.lead.save(part(10, 0), 10)
        with pytest.raises(RuntimeError, match="no thread"):
            ranks.others[0].save(part(10, 1), 10)
    assert not ranks.lead.busy
    assert not ranks.others[0]._unwritten
    ranks.save(20)
    assert ranks.loaded(1, "step-000000000020") == [1.0, 1.0, 20.0]


def test_a_full_disk_of_one_rank_is_that_ranks_error(tmp_path: Path) -> None:
    """A part that cannot be written is reported by its rank, and leaves nothing half-written."""
    import resource

    results: list[SaveResult] = []
    store = FollowerStore(tmp_path, RUN, 1, on_saved=results.append)
    big = part(10, 1)
    big["model"]["shard"] = torch.zeros(1_000_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot save rank 1's part of step 10"):
            store.save(big, 10, wait=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [result.error.reason for result in results if result.error] == ["disk"]
    with contextlib.suppress(FileNotFoundError):
        assert list((tmp_path / RUN / "rank-1").iterdir()) == []


def test_a_killed_ranks_leftovers_are_tidied_up(tmp_path: Path) -> None:
    """The next start removes what a killed rank was writing."""
    store = FollowerStore(tmp_path, RUN, 1)
    store.save(part(10, 1), 10, wait=True)
    own = tmp_path / RUN / "rank-1"
    (own / ".new-step-000000000020.abc").mkdir()
    FollowerStore(tmp_path, RUN, 1)
    assert [path.name.partition(".")[0] for path in own.iterdir()] == ["step-000000000010"]
