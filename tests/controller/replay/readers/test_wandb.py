"""A run's history as Weights & Biases exports it: JSON lines, CSV, Parquet, and the CSV of a chart."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from trainswitch_controller.errors import RecordedRunError
from trainswitch_controller.replay.model import Row
from trainswitch_controller.replay.readers import read

HISTORY: list[dict[str, Any]] = [
    {"_step": 0, "_runtime": 1.5, "_timestamp": 1.7e9, "train/loss": 2.5, "train/global_step": 10},
    {"_step": 1, "_runtime": 2.5, "_timestamp": 1.7e9, "train/loss": "NaN", "train/global_step": 20},
    {"_step": 2, "_runtime": 2.6, "_timestamp": 1.7e9, "system/gpu": 0.5, "train/global_step": 20},
    {"_step": 3, "_runtime": 3.5, "_timestamp": 1.7e9, "eval/loss": 2.25, "train/global_step": 20},
]
"""As ``run.scan_history()`` yields it for a run of the Hugging Face trainer."""


def check(path: Path, steps: tuple[int, int, int] = (10, 20, 20)) -> None:
    """Check that `path` is read as `HISTORY`."""
    rows = read([path]).runs[0].rows
    assert [row.step for row in rows] == list(steps)
    assert rows[0] == Row(step=steps[0], loss=2.5)
    assert math.isnan(rows[1].loss or 0.0)
    assert rows[2].evaluations == {"eval_loss": 2.25}


def test_json_lines_of_a_history(tmp_path: Path) -> None:
    """Non-finite numbers are texts there; rows of system metrics alone are no steps."""
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(map(json.dumps, HISTORY)))
    check(path)


def test_csv_of_a_history(tmp_path: Path) -> None:
    """As ``run.history().to_csv()`` writes it, with an index in front; ``_step`` is the step."""
    path = tmp_path / "history.csv"
    path.write_text(
        ",_step,_runtime,_timestamp,train/loss,eval/loss\n"
        "0,0,1.5,1.7e9,2.5,\n1,1,2.5,1.7e9,nan,\n2,2,2.6,1.7e9,,\n3,3,3.5,1.7e9,,2.25\n"
    )
    check(path, (0, 1, 3))


def test_parquet_of_a_history(tmp_path: Path) -> None:
    """The artifact with the whole history: null is absent, NaN is a value, other types are left out."""
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "history.parquet"
    names = dict.fromkeys(name for entry in HISTORY for name in entry)
    columns = {name: [entry.get(name) for entry in HISTORY] for name in names}
    columns["train/loss"] = [2.5, math.nan, None, None]
    columns["table"] = [None, {"_type": "table-file"}, None, None]
    parquet.write_table(pa.table(columns), path)
    check(path)


def test_damaged_parquet_is_an_error(tmp_path: Path) -> None:
    """The sentence has the library's reason."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "history.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(RecordedRunError, match=r"history\.parquet cannot be read as Parquet: \S"):
        read([path])


def test_without_pyarrow_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is optional."""
    path = tmp_path / "history.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecordedRunError, match=r"run pip install 'trainswitch\[replay\]'"):
        read([path])


def test_the_csv_of_a_chart_is_one_run_a_column(tmp_path: Path) -> None:
    """A chart's export has a column for each run, with its minimum and maximum beside it."""
    path = tmp_path / "chart.csv"
    names = [f"{run} - train/loss{end}" for run in ("sun-1", "my run - b") for end in ("", "__MIN", "__MAX")]
    header = ",".join(f'"{name}"' for name in ("Step", *names))
    path.write_text(f'{header}\n"0","2.5","2","3","4","4","4"\n"10","2","2","2","","",""\n')
    runs = read([path]).runs
    assert {run.id: run.rows for run in runs} == {
        "sun-1": (Row(step=0, loss=2.5), Row(step=10, loss=2.0)),
        "my-run-b": (Row(step=0, loss=4.0),),
    }
