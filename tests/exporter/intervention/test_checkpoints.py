from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trainswitch.errors import CheckpointCorrupt, CheckpointError, ConfigError, RunNameError
from trainswitch.intervention.checkpoint_writer import SaveResult
from trainswitch.intervention.checkpoints import CheckpointStore

RUN = "run-1"
Stores = Callable[..., CheckpointStore]


def state(step: int, numbers: int = 100) -> dict[str, Any]:
    """Something like a captured training state, recognisable by its step."""
    return {"meta": {"step": step}, "model": {"weight": torch.full((numbers,), float(step))}}


def kinds(store: CheckpointStore) -> dict[int, str]:
    """What the store holds, the newest last: step and kind."""
    return {entry.step: entry.kind for entry in store.entries()}


def folders(root: Path) -> list[str]:
    """What the run's folder holds, hidden leftovers included."""
    return sorted(path.name for path in (root / RUN).iterdir())


def flip_byte(path: Path, position: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as handle:
        handle.seek(position)
        byte = handle.read(1)[0]
        handle.seek(position)
        handle.write(bytes([byte ^ 1]))


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll, and fail after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Gate:
    """A value whose saving waits until the gate is opened: a save that takes as long as a test wants."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        self.reached.set()
        assert self.opened.wait(30)
        return (OrderedDict, ())


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Stores]:
    """Open stores in one folder; all are closed at the end."""
    opened = []

    def build(folder: Path = tmp_path, **options: Any) -> CheckpointStore:
        opened.append(CheckpointStore(folder, RUN, **options))
        return opened[-1]

    yield build
    for store in opened:
        store.close()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "trainswitch-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class TestSaving:
    """What `save`, `close` and the constructor promise."""

    def test_a_saved_state_comes_back(self, open_store: Stores, tmp_path: Path) -> None:
        """What was saved is loaded equal, with an entry that describes the file on disk."""
        store = open_store()
        store.save(state(7), 7, wait=True)

        captured, entry = store.load()

        assert captured["meta"] == {"step": 7}
        assert torch.equal(torch.full((100,), 7.0), captured["model"]["weight"])
        assert store.entries() == (entry,)
        assert entry.path == str(tmp_path / RUN / "step-000000000007")
        assert entry.size_bytes == (Path(entry.path) / "state.pt").stat().st_size
        assert entry.kind == "probation"

    def test_manifest(self, open_store: Stores) -> None:
        """The manifest names schema, run, step, kind, size, checksum and the version of torch."""
        store = open_store()
        store.save(state(7), 7, kind="suspect", wait=True)

        manifest = json.loads((Path(store.entries()[0].path) / "manifest.json").read_text())

        assert len(manifest.pop("sha256")) == 64
        assert abs(manifest.pop("created_at") - time.time()) < 60
        assert manifest == {
            "schema": "trainswitch.checkpoint/1",
            "run": RUN,
            "step": 7,
            "kind": "suspect",
            "size_bytes": store.entries()[0].size_bytes,
            "torch_version": str(torch.__version__),
            "pinned": False,
            "nonfinite": "",
            "moment": "",
            "parts": [],
        }

    def test_nothing_is_created_before_the_first_save(self, open_store: Stores, tmp_path: Path) -> None:
        """A store that is never used leaves no trace."""
        open_store()

        assert list(tmp_path.iterdir()) == []

    def test_a_save_does_not_wait_for_the_disk(self, open_store: Stores) -> None:
        """`save` returns while the writer is still at work.

        A second save meanwhile is refused as busy, and the first is finished all the same.
        """
        results: list[SaveResult] = []
        store = open_store(on_saved=results.append)
        gate = Gate()
        store.save({"gate": gate}, 1)
        assert gate.reached.wait(30)

        with pytest.raises(CheckpointError, match="step 2 was not saved, because that of step 1") as caught:
            store.save(state(2), 2)

        assert caught.value.reason == "busy"
        assert (store.busy, store.entries()) == (True, ())
        gate.opened.set()
        store.close()
        assert (store.busy, list(kinds(store))) == (False, [1])
        assert [(result.step, result.error) for result in results] == [(1, None)]
        assert results[0].entry == store.entries()[0]
        assert results[0].seconds > 0

    def test_a_waiting_save_lets_the_one_before_finish(self, open_store: Stores) -> None:
        """With `wait`, a save queues behind the one in progress instead of being refused."""
        store = open_store()
        gate = Gate()
        store.save({"gate": gate}, 1)
        assert gate.reached.wait(30)
        threading.Timer(0.05, gate.opened.set).start()

        store.save(state(2), 2, wait=True)

        assert list(kinds(store)) == [1, 2]

    def test_a_step_saved_again_replaces_the_old_one(self, open_store: Stores, tmp_path: Path) -> None:
        """After a rollback the same step is saved again; the new state takes the place of the old one."""
        store = open_store()
        store.save(state(5), 5, wait=True)
        store.save({"meta": {"step": 5}, "second": True}, 5, wait=True)

        assert store.load(5)[0]["second"] is True
        assert folders(tmp_path) == ["step-000000000005"]
        assert len(store.entries()) == 1

    def test_what_torch_cannot_save_is_reported(self, open_store: Stores, tmp_path: Path) -> None:
        """A failure that is not the disk's has the reason `state`, and the next save works."""
        results: list[SaveResult] = []
        store = open_store(on_saved=results.append)

        with pytest.raises(CheckpointError, match=r"step 1 cannot be written by torch.save") as caught:
            store.save({"lock": threading.Lock()}, 1, wait=True)

        assert caught.value.reason == "state"
        assert results[0].error is caught.value
        assert folders(tmp_path) == []
        store.save(state(2), 2, wait=True)
        assert list(kinds(store)) == [2]

    def test_a_failing_callback_does_not_end_the_saving(self, open_store: Stores) -> None:
        """An exception in `on_saved` is told as a problem; the checkpoint and the next one are saved."""
        store = open_store(on_saved=lambda result: 1 / 0)
        store.save(state(1), 1, wait=True)
        store.save(state(2), 2, wait=True)

        assert list(kinds(store)) == [1, 2]
        assert all("on_saved failed" in str(problem) for problem in store.take_problems())

    def test_a_closed_store_refuses(self, open_store: Stores) -> None:
        """After `close` nothing more is saved, and the message says why; closing twice is harmless."""
        store = open_store()
        store.save(state(1), 1)
        store.close()
        store.close()

        assert list(kinds(store)) == [1]
        with pytest.raises(CheckpointError, match="the store of 'run-1' is closed"):
            store.save(state(2), 2)

    def test_closing_does_not_wait_for_ever(self, open_store: Stores) -> None:
        """A save that hangs is given up after the timeout, and the message says where to look."""
        store = open_store()
        gate = Gate()
        store.save({"gate": gate}, 1)
        assert gate.reached.wait(30)

        with pytest.raises(CheckpointError, match="is given up: check the disk"):
            store.close(timeout=0.05)

        gate.opened.set()

    @pytest.mark.parametrize("run", ["../up", "a/b", "", "."])
    def test_a_run_name_that_is_no_folder_is_refused(self, run: str, tmp_path: Path) -> None:
        """A run name cannot lead out of the checkpoint folder."""
        with pytest.raises(RunNameError):
            CheckpointStore(tmp_path, run)

    @pytest.mark.parametrize("options", [{"keep": 1}, {"probation_steps": 0}, {"max_pinned": 0}], ids=str)
    def test_settings_out_of_bounds_are_refused(self, options: dict[str, int], open_store: Stores) -> None:
        """A setting under which nothing would ever become stable is refused with the least value."""
        with pytest.raises(ConfigError, match="give at least"):
            open_store(**options)


class TestDisk:
    """A disk that is full, read-only or not what it should be."""

    def test_a_full_disk_costs_only_the_new_checkpoint(self, open_store: Stores, tmpfs: Path) -> None:
        """When the disk fills up in the middle of a save, the older checkpoints stay.

        Nothing half-written is left, and the next save that finds space works.
        """
        results: list[SaveResult] = []
        store = open_store(tmpfs, on_saved=results.append)
        store.save(state(1, 50_000), 1, wait=True)

        with pytest.raises(
            CheckpointError, match=r"step 2 in .*No space left on device.*space left"
        ) as caught:
            store.save(state(2, 1_000_000), 2, wait=True)

        assert caught.value.reason == "disk"
        assert results[-1].error is caught.value
        assert folders(tmpfs) == ["step-000000000001"]
        assert store.load(1)[0]["meta"] == {"step": 1}
        store.save(state(3, 50_000), 3, wait=True)
        assert list(kinds(store)) == [1, 3]

    def test_a_limit_in_the_middle_of_a_file(self, open_store: Stores, tmp_path: Path) -> None:
        """Any other refusal to write, here a limit on file sizes, ends the same way.

        A step that was to be replaced keeps its old checkpoint.
        """
        store = open_store()
        store.save(state(1), 1, wait=True)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(CheckpointError, match=os.strerror(errno.EFBIG)) as caught:
                store.save(state(1, 1_000_000), 1, wait=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

        assert caught.value.reason == "disk"
        assert folders(tmp_path) == ["step-000000000001"]
        assert len(store.load(1)[0]["model"]["weight"]) == 100

    def test_a_read_only_disk(self, open_store: Stores, tmpfs: Path) -> None:
        """On a disk that has become read-only, saving fails with a sentence and loading still works."""
        store = open_store(tmpfs)
        store.save(state(1), 1, wait=True)
        subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)

        with pytest.raises(CheckpointError, match="Read-only file system"):
            store.save(state(2), 2, wait=True)
        store.advance(101)

        assert store.load()[0]["meta"] == {"step": 1}
        assert kinds(store) == {1: "stable"}
        (problem,) = store.take_problems()
        assert "step-000000000001 as stable (Read-only file system)" in str(problem)

    def test_a_folder_that_may_not_be_written(self, open_store: Stores, tmp_path: Path) -> None:
        """Without the permission to write, saving fails with a sentence, and what is there is of use."""
        store = open_store()
        store.save(state(1), 1, wait=True)
        (tmp_path / RUN).chmod(0o555)
        if os.access(tmp_path / RUN, os.W_OK):
            pytest.skip("root may write everywhere")
        try:
            with pytest.raises(CheckpointError, match=os.strerror(errno.EACCES)) as caught:
                store.save(state(2), 2, wait=True)
        finally:
            (tmp_path / RUN).chmod(0o755)

        assert caught.value.reason == "disk"
        assert store.load()[0]["meta"] == {"step": 1}
        store.save(state(3), 3, wait=True)
        assert list(kinds(store)) == [1, 3]

    def test_a_file_in_place_of_the_folder(self, open_store: Stores, tmp_path: Path) -> None:
        """A checkpoint folder that is a file neither stops the start nor goes unreported."""
        (tmp_path / "file").write_text("")
        store = open_store(tmp_path / "file")

        assert [problem.reason for problem in store.take_problems()] == ["disk"]
        with pytest.raises(CheckpointError, match="Not a directory"):
            store.save(state(1), 1, wait=True)
        with pytest.raises(
            CheckpointError, match=r"no checkpoint to roll back to: none of those it has \(none\)"
        ):
            store.load()


class TestLoading:
    """Which checkpoint `load` takes, and what it does with damaged ones."""

    @pytest.fixture
    def store(self, open_store: Stores) -> CheckpointStore:
        """A store with stable checkpoints of steps 10 and 20, and one of step 30 on probation."""
        store = open_store(probation_steps=5)
        for step in (10, 20, 30):
            store.save(state(step), step, wait=True)
            store.advance(step)
        return store

    def damage(self, store: CheckpointStore, step: int, how: Callable[[Path], object]) -> None:
        """Do something to the state file of a checkpoint."""
        how(next(Path(entry.path) for entry in store.entries() if entry.step == step) / "state.pt")

    def test_the_newest_stable_one_is_preferred(self, store: CheckpointStore) -> None:
        """Without a step, probation is not enough; with one, any checkpoint is loaded."""
        assert store.load()[1].step == 20
        assert store.load(30)[1].step == 30

    @pytest.mark.parametrize(
        ("how", "sentence"),
        [
            (lambda path: os.truncate(path, 500), r"state.pt has 500 bytes where its manifest says \d+"),
            (lambda path: flip_byte(path, 700), "state.pt does not match the sha256 in its manifest"),
            (lambda path: path.unlink(), "state.pt is missing"),
        ],
        ids=["truncated", "flipped byte", "missing"],
    )
    def test_damage_is_found_and_set_aside(
        self, how: Callable[[Path], object], sentence: str, store: CheckpointStore, tmp_path: Path
    ) -> None:
        """A damaged checkpoint is never loaded: the next older stable one is.

        The damaged one is kept under another name, for a person to look at.
        """
        self.damage(store, 20, how)

        captured, entry = store.load()

        assert captured["meta"] == {"step": 10}
        assert entry.step == 10
        assert list(kinds(store)) == [10, 30]
        (problem,) = store.take_problems()
        assert isinstance(problem, CheckpointCorrupt)
        assert str(problem).endswith("was set aside as step-000000000020.corrupt: choose another.")
        assert "step-000000000020.corrupt" in folders(tmp_path)
        assert store.take_problems() == ()
        self.damage(store, 10, how)
        with pytest.raises(CheckpointCorrupt, match=sentence):
            store.load(10)

    def test_a_bound_leads_further_back(self, store: CheckpointStore) -> None:
        """With `before_step` the newest stable one up to that step is taken, and none where there is none."""
        assert store.load(before_step=20)[1].step == 20
        assert store.load(before_step=19)[1].step == 10
        with pytest.raises(CheckpointError, match="not ahead of step 9"):
            store.load(before_step=9)

    def test_where_none_is_so_old_the_oldest_stable_one_may_do(self, store: CheckpointStore) -> None:
        """Only if it was asked for, and after all that are old enough."""
        assert store.load(before_step=9, or_oldest=True)[1].step == 10
        assert store.load(before_step=25, or_oldest=True)[1].step == 20
        self.damage(store, 10, lambda path: path.unlink())
        assert store.load(before_step=9, or_oldest=True)[1].step == 20

    def test_without_a_stable_one_probation_has_to_do(self, store: CheckpointStore) -> None:
        """When every stable checkpoint is damaged, the newest on probation is taken, and its kind says so."""
        for step in (10, 20):
            self.damage(store, step, lambda path: os.truncate(path, 0))

        assert (store.load()[1].step, store.load()[1].kind) == (30, "probation")

    def test_suspect_ones_are_loaded_only_by_name(self, open_store: Stores) -> None:
        """With nothing but suspect checkpoints a rollback is refused, with their steps to choose from."""
        store = open_store()
        store.save(state(1), 1, kind="suspect", wait=True)

        with pytest.raises(
            CheckpointError, match=r"no checkpoint to roll back to: .*\(1 suspect\)"
        ) as caught:
            store.load()

        assert caught.value.reason == "state"
        assert store.load(1)[1].step == 1

    def test_an_unknown_step_is_refused(self, store: CheckpointStore) -> None:
        """A step that was never saved, or is rotated away, is answered with those that are there."""
        with pytest.raises(
            CheckpointError, match=r"step 15: choose .*\(10 stable, 20 stable, 30 probation\)"
        ):
            store.load(15)

    def test_a_rollback_never_goes_forward(self, store: CheckpointStore, open_store: Stores) -> None:
        """A run that starts again under its old name is not thrown to where the earlier session was."""
        store.close()
        again = open_store(probation_steps=5)
        assert again.load()[1].step == 20

        again.advance(12)

        assert again.load()[1].step == 10
        again.advance(3)
        with pytest.raises(CheckpointError, match="not ahead of the run"):
            again.load()

    def test_loading_waits_for_a_save_in_progress(self, open_store: Stores) -> None:
        """A rollback that comes during a save first lets it finish, so the two never meet on disk."""
        store = open_store()
        gate = Gate()
        store.save({"gate": gate}, 1)
        assert gate.reached.wait(30)
        threading.Timer(0.05, gate.opened.set).start()

        assert store.load()[1].step == 1


class TestKinds:
    """Probation, stable and suspect over the life of a run."""

    def test_probation_ends_after_its_steps(self, open_store: Stores) -> None:
        """A checkpoint is stable exactly `probation_steps` later, and a later session knows it."""
        store = open_store(probation_steps=100)
        store.save(state(50), 50, wait=True)

        store.advance(149)
        assert kinds(store) == {50: "probation"}
        store.advance(150)
        assert kinds(store) == {50: "stable"}

        store.close()
        assert kinds(open_store()) == {50: "stable"}

    def test_trouble_taints_what_is_on_probation(self, open_store: Stores) -> None:
        """Checkpoints that had not outlived their probation never become stable; older ones stay stable."""
        store = open_store(probation_steps=100)
        for step in (0, 100, 150):
            store.save(state(step), step, wait=True)
            store.advance(step)

        store.trouble(180)
        store.advance(1000)

        assert kinds(store) == {0: "stable", 100: "suspect", 150: "suspect"}
        store.close()
        assert kinds(open_store()) == kinds(store)

    def test_trouble_that_began_earlier(self, open_store: Stores) -> None:
        """When the trouble's onset lies back, a checkpoint that became stable since is suspect after all."""
        store = open_store(probation_steps=10)
        for step in (0, 20, 40):
            store.save(state(step), step, wait=True)
            store.advance(step)
        assert kinds(store) == {0: "stable", 20: "stable", 40: "probation"}

        store.trouble(25)

        assert kinds(store) == {0: "stable", 20: "suspect", 40: "suspect"}

    def test_trouble_reaches_a_save_in_progress(self, open_store: Stores) -> None:
        """A checkpoint that is being written when trouble is noticed is suspect once it is there."""
        store = open_store()
        gate = Gate()
        store.save({"gate": gate}, 10)
        assert gate.reached.wait(30)

        store.trouble(11)
        gate.opened.set()
        store.close()

        assert kinds(store) == {10: "suspect"}
        assert kinds(open_store()) == {10: "suspect"}

    def test_after_a_rollback_the_later_ones_are_suspect(self, open_store: Stores) -> None:
        """What was saved on the abandoned path stays as evidence, and the run earns new ones on its way."""
        store = open_store(probation_steps=10)
        for step in (0, 20, 40):
            store.save(state(step), step, wait=True)
            store.advance(step)

        store.rolled_back(0)
        assert kinds(store) == {0: "stable", 20: "suspect", 40: "suspect"}

        store.save(state(20), 20, wait=True)
        store.advance(30)
        assert kinds(store) == {0: "stable", 40: "suspect", 20: "stable"}

    def test_what_could_not_be_marked_is_marked_later(self, open_store: Stores) -> None:
        """A kind that the disk refused to record is held in memory and recorded with the next save."""
        store = open_store(probation_steps=10)
        store.save(state(0), 0, wait=True)
        folder = Path(store.entries()[0].path)
        hidden = folder.rename(folder.with_name("hidden"))
        store.trouble(1)
        wait_until(lambda: store.take_problems() != ())
        hidden.rename(folder)

        store.save(state(20), 20, wait=True)
        store.close()

        assert kinds(open_store()) == {0: "suspect", 20: "probation"}


class TestBrokenWeights:
    """Checkpoints that hold NaN or infinity when they are saved."""

    def test_they_are_suspect_from_birth(self, open_store: Stores) -> None:
        """Nobody has to notice the trouble: the weights are looked at where they are written.

        It is told once, with the place and as a failure of its own kind; the checkpoint never becomes stable
        and is not taken unasked, but by its step.
        """
        results: list[SaveResult] = []
        store = open_store(probation_steps=5, on_saved=results.append)
        store.save(state(10), 10, wait=True)
        broken = state(15)
        broken["model"]["weight"][99] = float("nan")
        store.save(broken, 15, wait=True)
        store.advance(100)

        assert kinds(store) == {10: "stable", 15: "suspect"}
        (problem,) = store.take_problems()
        assert problem.reason == "nonfinite"
        assert "step 15 is suspect from birth, because model['weight'] holds NaN" in str(problem)
        assert store.take_problems() == ()
        assert [result.nonfinite for result in results] == ["", "model['weight'] holds NaN"]
        assert store.load()[1].step == 10
        assert store.load(15)[1].step == 15
        store.close()
        assert kinds(open_store()) == {10: "stable", 15: "suspect"}

    def test_the_training_thread_does_not_look(self, open_store: Stores) -> None:
        """The weights are judged by the writer's thread, however long that takes."""
        judged_by = []
        gate = threading.Event()

        def judge(_: dict[str, Any]) -> str:
            assert gate.wait(30)
            judged_by.append(threading.current_thread().name)
            return ""

        store = open_store(judge=judge)
        store.save(state(1), 1)
        assert judged_by == []
        gate.set()
        store.finish()
        assert judged_by == [f"trainswitch-checkpoints-{RUN}"]


class TestPins:
    """Checkpoints that somebody wants to keep."""

    def test_a_pinned_one_outlives_rotation_and_sessions(
        self, open_store: Stores, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A pin is kept until newer pins take its place, which the log says."""
        store = open_store(keep=2, max_pinned=1)
        store.save(state(1), 1, kind="suspect", pin=True, wait=True)
        for step in range(2, 6):
            store.save(state(step), step, kind="suspect", wait=True)
        assert list(kinds(store)) == [1, 4, 5]
        store.close()

        again = open_store(keep=2, max_pinned=1)
        assert [(e.step, e.pinned) for e in again.entries()] == [(1, True), (4, False), (5, False)]
        again.save(state(6), 6, kind="suspect", pin=True, wait=True)
        assert "checkpoint of step 1 is not pinned any more" in caplog.text
        again.save(state(7), 7, kind="suspect", wait=True)
        again.close()
        assert [(e.step, e.pinned) for e in open_store().entries()] == [(6, True), (7, False)]

    def test_the_same_step_again_does_not_replace_it(self, open_store: Stores, tmp_path: Path) -> None:
        """After a rollback the step comes again; the pinned state stays beside the new one, each whole."""
        store = open_store()
        store.save(state(5), 5, pin=True, wait=True)
        store.rolled_back(4)
        store.save({**state(5), "second": True}, 5, wait=True)

        assert folders(tmp_path) == ["step-000000000005", "step-000000000005.2"]
        assert store.load(5)[0]["second"] is True  # the one that is not suspect
        store.close()
        again = open_store()
        assert again.take_problems() == ()
        assert [(e.kind, e.pinned) for e in again.entries()] == [("suspect", True), ("probation", False)]
        pinned = torch.load(tmp_path / RUN / "step-000000000005" / "state.pt", weights_only=True)
        assert "second" not in pinned


class TestRotation:
    """Which checkpoints stay when new ones come."""

    def test_frequent_saves_still_become_stable(self, open_store: Stores, tmp_path: Path) -> None:
        """With ten saves in one probation and room for three, checkpoints still become stable.

        The oldest on probation is kept until it is; there are never more than keep + 3.
        """
        store = open_store(keep=3, probation_steps=100)
        for step in range(0, 500, 10):
            store.advance(step)
            store.save(state(step), step, wait=True)
            assert len(store.entries()) <= 6

        assert kinds(store) == {
            240: "stable",
            320: "stable",
            400: "probation",
            480: "probation",
            490: "probation",
        }
        assert folders(tmp_path) == [f"step-{step:012d}" for step in sorted(kinds(store))]

    def test_stable_ones_and_the_newest_suspect_are_pinned(self, open_store: Stores) -> None:
        """Any number of later saves leaves the two newest stable checkpoints and the newest suspect one."""
        store = open_store(keep=2, probation_steps=5)
        for step in (0, 10, 20):
            store.save(state(step), step, wait=True)
            store.advance(step)
        store.advance(25)
        for step in (31, 32):
            store.save(state(step), step, kind="suspect", wait=True)
        for step in range(33, 60):
            store.save(state(step), step, wait=True)

        assert kinds(store) == {
            10: "stable",
            20: "stable",
            32: "suspect",
            33: "probation",
            59: "probation",
        }

    def test_after_a_rollback_new_ones_are_not_pushed_out(self, open_store: Stores) -> None:
        """Newest means saved last: checkpoints of the repeated steps outlive those of the abandoned path."""
        store = open_store(keep=2, probation_steps=100)
        for step in range(0, 600, 100):
            store.save(state(step), step, wait=True)
            store.advance(step)
        store.rolled_back(300)

        for step in (310, 320, 330):
            store.save(state(step), step, wait=True)

        assert kinds(store) == {
            200: "stable",
            300: "stable",
            500: "suspect",
            310: "probation",
            330: "probation",
        }

    def test_a_checkpoint_that_cannot_be_deleted_is_reported(
        self, open_store: Stores, tmp_path: Path
    ) -> None:
        """A deletion that fails is told once per try and does not make the save fail."""
        results: list[SaveResult] = []
        store = open_store(keep=2, on_saved=results.append)
        for step in (1, 2):
            store.save(state(step), step, kind="suspect", wait=True)
        blocker = tmp_path / RUN / ".new-step-000000000001"
        blocker.mkdir()
        (blocker / "file").write_text("")

        store.save(state(3), 3, wait=True)

        assert results[-1].error is None
        assert "cannot delete the old checkpoint" in str(store.take_problems()[0])
        assert list(kinds(store)) == [1, 2, 3]


class TestEarlierSessions:
    """What a new session makes of what it finds."""

    def test_a_new_session_finds_them_in_order(self, open_store: Stores) -> None:
        """Entries of an earlier session are the same, in the order of saving, kinds included."""
        store = open_store(probation_steps=10)
        for step in (5, 30, 20):
            store.save(state(step), step, wait=True)
            store.advance(step)
        store.close()

        assert open_store().entries() == store.entries()

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("{", "is not a 'trainswitch.checkpoint/1' manifest"),
            ('{"schema": "somebody.else/1"}', "is not a 'trainswitch.checkpoint/1' manifest"),
            (None, "cannot read .*manifest.json, so its checkpoint is not used"),
        ],
        ids=["torn", "foreign", "missing"],
    )
    def test_an_unusable_manifest_is_reported_and_left_alone(
        self, text: str | None, sentence: str, open_store: Stores, tmp_path: Path
    ) -> None:
        """A folder that is not this product's is named and not used; a save of its step loses nothing."""
        folder = tmp_path / RUN / "step-000000000005"
        folder.mkdir(parents=True)
        if text is not None:
            (folder / "manifest.json").write_text(text)

        store = open_store()

        assert store.entries() == ()
        (problem,) = store.take_problems()
        assert re.search(sentence, str(problem))
        store.save(state(5), 5, wait=True)
        assert folders(tmp_path) == ["step-000000000005", "step-000000000005.foreign"]

    def test_another_runs_checkpoint_is_not_used(self, open_store: Stores, tmp_path: Path) -> None:
        """A checkpoint copied from another run's folder is refused by name."""
        with_other_name = CheckpointStore(tmp_path, "other")
        with_other_name.save(state(5), 5, wait=True)
        with_other_name.close()
        (tmp_path / "other").rename(tmp_path / RUN)

        store = open_store()

        assert store.entries() == ()
        assert "is of run 'other', step 5" in str(store.take_problems()[0])

    def test_leftovers_of_a_killed_session_are_tidied_up(self, open_store: Stores, tmp_path: Path) -> None:
        """Half-written checkpoints go; one that was being replaced is still there, old or new."""
        store = open_store()
        for step in (1, 2):
            store.save(state(step), step, wait=True)
        store.close()
        root = tmp_path / RUN
        (root / ".new-step-000000000003").mkdir()
        (root / ".new-step-000000000003" / "state.pt").write_text("half")
        (root / "step-000000000001").rename(root / ".old-step-000000000001")
        (root / ".old-step-000000000002").mkdir()

        again = open_store()

        assert folders(tmp_path) == ["step-000000000001", "step-000000000002"]
        assert [again.load(step)[0]["meta"]["step"] for step in (1, 2)] == [1, 2]
        assert again.take_problems() == ()

    def test_killed_while_saving(self, open_store: Stores, tmp_path: Path) -> None:
        """SIGKILL in the middle of a save leaves only whole checkpoints, and the next session goes on."""
        script = (
            "import sys, torch\n"
            "from pathlib import Path\n"
            "from trainswitch.intervention.checkpoints import CheckpointStore\n"
            f"store = CheckpointStore(Path(sys.argv[1]), {RUN!r})\n"
            "for step in range(1, 10_000):\n"
            "    store.save({'step': step, 'weight': torch.ones(2_000_000)}, step, wait=True)\n"
        )
        trainer = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
        try:

            def third_is_half_written() -> bool:
                sizes = [0]
                for path in (tmp_path / RUN).glob(".new-step-*[3-9]/state.pt"):
                    with contextlib.suppress(FileNotFoundError):  # finished between the two looks
                        sizes.append(path.stat().st_size)
                return max(sizes) > 100_000

            wait_until(third_is_half_written)
        finally:
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(30)

        store = open_store()

        assert len(store.entries()) >= 2
        for entry in store.entries():
            assert store.load(entry.step)[0]["step"] == entry.step
        assert all(name.startswith("step-") for name in folders(tmp_path))
        assert store.take_problems() == ()
        store.save(state(50_000), 50_000, wait=True)
        assert store.entries()[-1].step == 50_000


def test_the_modules_import_without_torch() -> None:
    """The base install has no torch: importing the modules does not need it."""
    names = ("checkpoints", "follower", "learning_rate", "training_state")
    imports = "\n".join(f"import trainswitch.intervention.{name}" for name in names)
    code = f"import sys\nsys.modules['torch'] = None\n{imports}\n"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
