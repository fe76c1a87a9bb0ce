"""TensorBoard event files, as the real writers make them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from tests.exporter.sinks.support import evaluation_record, step_record

from trainswitch.sinks.sink import Derived
from trainswitch.sinks.tensorboard import TensorBoardSink
from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.model import Row
from trainswitch_controller.replay.readers import read

torch = pytest.importorskip("torch")
tensorboard = pytest.importorskip("torch.utils.tensorboard")


def write(folder: Path, steps: range, tag: str = "train/loss") -> Path:
    """Write one event file with torch's writer and return it."""
    before = set(folder.glob("*"))
    with tensorboard.SummaryWriter(str(folder), filename_suffix=f".{steps.start}") as writer:
        for step in steps:
            writer.add_scalar(tag, 4.0 / step, step)
            writer.add_scalar("train/grad_norm", 1.5, step)
            writer.add_histogram("weights", torch.tensor([1.0, 2.0]), step)
        writer.add_scalar("eval/loss", 2.5, steps[-1])
        writer.add_text("note", "nothing to do with numbers", 0)
    (path,) = set(folder.glob("*")) - before
    return path


def test_scalars_of_a_step_are_a_row(tmp_path: Path) -> None:
    """Tags are found by their names; histograms and texts are left alone."""
    (run,) = read([write(tmp_path / "gpt2", range(1, 3))]).runs
    assert run.id == "gpt2"
    assert run.rows == (
        Row(step=1, loss=4.0, grad_norm=1.5),
        Row(step=2, loss=2.0, grad_norm=1.5, evaluations={"eval_loss": 2.5}),
    )


def test_the_files_of_a_folder_are_one_run(tmp_path: Path) -> None:
    """A run that was resumed goes on in another file; each folder below is a run of its own."""
    first = write(tmp_path / "a", range(1, 3))
    second = write(tmp_path / "a", range(3, 5))
    write(tmp_path / "b", range(1, 2))
    runs = read([tmp_path]).runs
    assert [(run.id, [row.step for row in run.rows]) for run in runs] == [("a", [1, 2, 3, 4]), ("b", [1])]
    (named,) = read([first, second]).runs
    assert named.rows == runs[0].rows


def test_a_tag_can_be_given(tmp_path: Path) -> None:
    """What is not well-known is named by the user."""
    path = write(tmp_path, range(1, 2), tag="objective/total")
    assert read([path]).runs[0].rows[0].loss is None
    assert read([path], columns={"loss": "objective/total"}).runs[0].rows[0].loss == 4.0


def test_values_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    """NaN and infinity pass through the file."""
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", math.nan, 1)
        writer.add_scalar("grad_norm", math.inf, 1)
    (row,) = read([tmp_path]).runs[0].rows
    assert math.isnan(row.loss or 0.0)
    assert row.grad_norm == math.inf


def test_a_torn_end_is_left_out(tmp_path: Path) -> None:
    """A trainer that was killed leaves half a record; what is whole is read."""
    path = write(tmp_path, range(1, 20))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 4])
    rows = read([path]).runs[0].rows
    assert 10 < len(rows) < 19
    assert rows[-1].loss == pytest.approx(4.0 / len(rows))


def test_a_file_without_scalars_is_no_log(tmp_path: Path) -> None:
    """It says so."""
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_text("note", "nothing", 0)
    with pytest.raises(NotALog, match="its event files hold no scalar"):
        read([tmp_path])


def test_our_own_event_files_are_read_back(tmp_path: Path) -> None:
    """What a trainer's sink wrote is found by itself."""
    sink = TensorBoardSink(tmp_path / "gpt2" / "rank-0", 2**20)
    sink.take(step_record(1, 3.0, 2.0, epoch=0.5), Derived(3.0, 0.1))
    sink.take(evaluation_record(1, "val_loss", 2.5), Derived())
    sink.close()
    (run,) = read([tmp_path]).runs
    (row,) = run.rows
    assert (row.step, row.epoch, row.loss, row.grad_norm) == (1, 0.5, 3.0, 2.0)
    assert (row.step_time_s, row.tokens_per_s, row.evaluations) == (0.5, 128.0, {"eval_loss": 2.5})
    assert row.learning_rate == pytest.approx(0.1)


def test_without_tensorboard_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is optional."""
    path = write(tmp_path, range(1, 2))
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    with pytest.raises(RecordedRunError, match=r"run pip install 'trainswitch\[replay\]'"):
        read([path])
