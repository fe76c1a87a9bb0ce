"""CSV logs: row by row as they are, under well-known or given names."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tests.exporter.sinks.support import evaluation_record, step_record

from trainswitch.sinks.csv_file import CsvSink
from trainswitch.sinks.sink import Derived
from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.model import RecordedRun, Row
from trainswitch_controller.replay.readers import parse_columns, read

HEADER = "step,epoch,loss,grad_norm,learning_rate,eval_loss,eval_accuracy,tokens_per_s,step_time_s"


def written(folder: Path, text: str, name: str = "gpt2.csv") -> Path:
    """Write a log and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def only(path: Path, **columns: str) -> RecordedRun:
    """Return the one run of a log that is read without anything being left out."""
    found = read([path], columns=columns)
    assert found.left_out == ()
    (run,) = found.runs
    return run


def test_a_line_is_a_row_and_a_blank_is_nothing(tmp_path: Path) -> None:
    """Every line below the header is one row, with all columns of a log that has them."""
    run = only(written(tmp_path, f"{HEADER}\n1,0.5,2.25,1.5,1e-3,,,1000,0.25\n1,,,,,2.5,0.5,,\n,,,,,,,,\n"))
    assert (run.id, run.path) == ("gpt2", tmp_path / "gpt2.csv")
    assert run.rows == (
        Row(
            step=1,
            epoch=0.5,
            loss=2.25,
            grad_norm=1.5,
            learning_rate=0.001,
            tokens_per_s=1000.0,
            step_time_s=0.25,
        ),
        Row(step=1, evaluations={"eval_loss": 2.5, "eval_accuracy": 0.5}),
        Row(),
    )


def test_rows_of_one_step_stay_apart(tmp_path: Path) -> None:
    """Row numbers are those of the file, also where two lines could be one."""
    assert len(only(written(tmp_path, "step,loss,grad_norm\n1,2.0,\n1,,3.0\n")).rows) == 2


def test_values_that_are_not_finite_are_kept(tmp_path: Path) -> None:
    """``nan`` and ``inf`` are what a detector is there to see."""
    rows = only(written(tmp_path, "step,loss,grad_norm\n1,nan,inf\n2,-Infinity,NaN\n")).rows
    assert math.isnan(rows[0].loss or 0.0)
    assert (rows[0].grad_norm, rows[1].loss) == (math.inf, -math.inf)


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ("iteration,lm loss", "loss"),
        ("step,train/loss", "loss"),
        ("global_step,loss_metrics/global_avg_loss", "loss"),
        ("step,grad-norm", "grad_norm"),
        ("num_updates,gnorm", "grad_norm"),
    ],
)
def test_well_known_names_are_understood(tmp_path: Path, header: str, field: str) -> None:
    """The names that training tools use need no mapping."""
    (row,) = only(written(tmp_path, f"{header}\n7,1.25\n")).rows
    assert (row.step, getattr(row, field)) == (7, 1.25)


@pytest.mark.parametrize("name", ["val_loss", "Loss/val", "eval/loss", "validation/lm loss", "val/ce_loss"])
def test_an_evaluation_has_one_name_whatever_the_log_calls_it(tmp_path: Path, name: str) -> None:
    """Evaluations of different tools are comparable."""
    (row,) = only(written(tmp_path, f"step,loss,{name}\n7,,1.25\n")).rows
    assert row.evaluations == {"eval_loss": 1.25}


def test_the_loss_of_the_step_goes_before_that_of_the_epoch(tmp_path: Path) -> None:
    """Where a log has several candidates, the finest one is the loss."""
    (row,) = only(written(tmp_path, "train_loss_epoch,train_loss_step,step\n9,1,4\n")).rows
    assert row.loss == 1.0


def test_a_given_column_goes_before_well_known_names(tmp_path: Path) -> None:
    """What the user says is right, and a name is not taken for two fields."""
    path = written(tmp_path, "step,loss,ce,bleu\n1,9.0,2.0,0.25\n")
    (row,) = only(path, **parse_columns(["loss=ce", "eval_bleu=bleu", "grad_norm=loss"])).rows
    assert (row.loss, row.grad_norm, row.evaluations) == (2.0, 9.0, {"eval_bleu": 0.25})


def test_a_given_column_that_no_log_has_is_refused(tmp_path: Path) -> None:
    """A mapping without effect is an error; it is enough that one of several logs has the name."""
    first, second = written(tmp_path, "step,loss\n1,2\n"), written(tmp_path, "step,ce\n1,3\n", "other.csv")
    with pytest.raises(RecordedRunError, match=r"no log has 'cee', which --column loss=cee names"):
        read([first, second], columns={"loss": "cee"})
    assert [run.rows[0].loss for run in read([first, second], columns={"loss": "ce"}).runs] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("loss", "column 'loss' says nothing: write FIELD=NAME."),
        ("los=x", "column 'los=x': there is no field 'los': did you mean 'loss'?"),
        ("zzz=x", "column 'zzz=x': there is no field 'zzz': use one of step, epoch, loss"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused(assignment: str, sentence: str) -> None:
    """The sentence says what was probably meant."""
    with pytest.raises(RecordedRunError) as error:
        parse_columns([assignment])
    assert str(error.value).startswith(sentence)


def test_a_field_is_given_once() -> None:
    """Two names for one field contradict each other."""
    with pytest.raises(RecordedRunError, match="'loss' is given more than once"):
        parse_columns(["loss=a", "loss=b"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("step,loss\n1,2\n2,abc\n", "line 3: loss is 'abc', which is no number: correct it, or choose"),
        ("step,loss\n1.5,2\n", "line 2: step is '1.5', which is no whole number"),
        ("step,loss\n1,2,3\n", "line 2: it has 3 values where the header has 2 columns"),
        ("step,loss\n1\n", "line 2: it has 1 values where the header has 2 columns"),
        ("step,loss,loss\n1,2,3\n", "line 1: the header has column 'loss' twice"),
        ('step,loss\n1,"2\n', "it is not CSV"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    """One sentence names the file, the line, the value and the way out."""
    path = written(tmp_path, text)
    with pytest.raises(RecordedRunError) as error:
        read([path])
    assert str(error.value).startswith(str(path))
    assert sentence in str(error.value)
    assert str(error.value).endswith((".", "NAME."))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "it is empty"),
        (b"name,size\na,1\n", "among 'name', 'size' is neither a loss, nor a gradient norm"),
        (b"step,loss\n", "there is nothing below its header"),
        (b"hello\n", "its first line is no header of several columns"),
        (b"\x89PNG\x00\x00", "it is a binary file"),
    ],
)
def test_a_file_that_is_no_log_says_why(tmp_path: Path, content: bytes, sentence: str) -> None:
    """Alone it is an error; the sentence names what was found instead."""
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(NotALog, match=sentence) as error:
        read([path])
    assert str(path) in str(error.value)


def test_latin_1_is_refused_with_the_byte(tmp_path: Path) -> None:
    """Text in another encoding is not guessed at."""
    path = tmp_path / "x.csv"
    path.write_bytes(b"step,loss\n1,2\n\xe9,3\n")
    with pytest.raises(RecordedRunError, match=r"is not UTF-8 text \(byte 14\)"):
        read([path])


def test_our_own_csv_is_read_back(tmp_path: Path) -> None:
    """All parts that a trainer's sink wrote are one run, oldest first, named after the run."""
    folder = tmp_path / "gpt2" / "rank-0"
    for records in (
        [step_record(1, 3.0, 2.0, epoch=0.5), evaluation_record(1, "val_loss", 2.5)],
        [step_record(2, math.nan, 4.0)],
    ):
        sink = CsvSink(folder, 2**20)
        for record in records:
            sink.take(record, Derived())
        sink.close()
    run = only(tmp_path)
    assert (run.id, len(list(folder.iterdir()))) == ("gpt2-rank-0", 2)
    assert run.rows[:2] == (
        Row(
            step=1,
            epoch=0.5,
            loss=3.0,
            grad_norm=2.0,
            learning_rate=0.1,
            tokens_per_s=128.0,
            step_time_s=0.5,
        ),
        Row(step=1, evaluations={"eval_loss": 2.5}),
    )
    assert (run.rows[2].step, run.rows[2].grad_norm) == (2, 4.0)


def test_tabs_separate_as_well(tmp_path: Path) -> None:
    """A tab-separated table is a table."""
    assert only(written(tmp_path, "step\tloss\n1\t2.5\n", "a.tsv")).rows == (Row(step=1, loss=2.5),)
