"""What stands in the CSV."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from tests.exporter.sinks.support import (
    evaluation_record,
    new_aggregator,
    parts_of,
    step_record,
    write_step,
)

from trainswitch.recording.records import Kind, Record
from trainswitch.sinks.csv_file import COLUMNS, CsvSink
from trainswitch.sinks.sink import Derived


def rows(folder: Path, *records: Record) -> list[dict[str, str]]:
    """Return the rows that `records` become, without blanks."""
    sink = CsvSink(folder, 2**20)
    for record in records:
        sink.take(record, Derived())
    sink.close()
    (path,) = folder.iterdir()
    with path.open(newline="") as handle:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(handle)]


def test_a_step_is_a_row(tmp_path: Path) -> None:
    """Each value stands under its name, at full precision."""
    assert rows(tmp_path, step_record(7, 0.1 + 0.2, 3.0, epoch=1.5)) == [
        {
            "step": "7",
            "time": "1007.0",
            "epoch": "1.5",
            "loss": "0.30000000000000004",
            "grad_norm": "3.0",
            "learning_rate": "0.1",
            "tokens_per_s": "128.0",
            "step_time_s": "0.5",
            "data_wait_s": "0.25",
            "tokens": "64.0",
        }
    ]


def test_absent_is_blank_and_not_finite_is_spelt_out(tmp_path: Path) -> None:
    """No loss and a loss of NaN are two things."""
    absent, spelt = rows(
        tmp_path,
        step_record(1, None, None, seconds=math.nan, tokens=0.0, rates=[]),
        step_record(2, math.nan, math.inf),
    )
    assert set(absent) == {"step", "time", "data_wait_s"}
    assert (spelt["loss"], spelt["grad_norm"]) == ("nan", "inf")


def test_an_evaluation_has_rows_of_its_own(tmp_path: Path) -> None:
    """Every metric by its name; the first loss and the first accuracy also where readers look for them."""
    found = rows(
        tmp_path,
        evaluation_record(10, "val_loss", 2.5),
        evaluation_record(10, "test_loss", 2.75),
        evaluation_record(10, "val_acc", 0.5),
        evaluation_record(10, 'bleu, "cased"', 31.0),
        evaluation_record(20, "val_loss", 2.25),
    )
    assert found == [
        {"step": "10", "time": "1010.0", "eval_metric": "val_loss", "eval_value": "2.5", "eval_loss": "2.5"},
        {"step": "10", "time": "1010.0", "eval_metric": "test_loss", "eval_value": "2.75"},
        {
            "step": "10",
            "time": "1010.0",
            "eval_metric": "val_acc",
            "eval_value": "0.5",
            "eval_accuracy": "0.5",
        },
        {"step": "10", "time": "1010.0", "eval_metric": 'bleu, "cased"', "eval_value": "31.0"},
        {
            "step": "20",
            "time": "1020.0",
            "eval_metric": "val_loss",
            "eval_value": "2.25",
            "eval_loss": "2.25",
        },
    ]


def test_columns_of_recorded_runs_are_among_the_columns() -> None:
    """A CSV can be replayed like any recorded run: its columns have the usual names."""
    usual = "step,epoch,loss,grad_norm,learning_rate,eval_loss,eval_accuracy,tokens_per_s,step_time_s"
    assert set(usual.split(",")) <= set(COLUMNS)


def test_the_aggregator_feeds_it_in_the_order_of_the_run(tmp_path: Path) -> None:
    """Steps, an evaluation and a rollback arrive as they were; a second start adds a part."""
    for start in (1, 3):
        ring, aggregator = new_aggregator(csv={"folder": str(tmp_path)})
        write_step(ring, start, 2.0)
        ring.append(Kind.EVALUATION, start, (1.5,), label="val_loss")
        write_step(ring, start + 1, 2.0)
        write_step(ring, start, 2.0)
        aggregator.close()
    first, second = parts_of(tmp_path)
    for path, steps in ((first, ["1", "1", "2", "1"]), (second, ["3", "3", "4", "3"])):
        with path.open(newline="") as handle:
            assert [row["step"] for row in csv.DictReader(handle)] == steps
