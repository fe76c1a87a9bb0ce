"""JSON lines, and the trainer state of Hugging Face."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.model import Row
from trainswitch_controller.replay.readers import read

HISTORY: list[dict[str, Any]] = [
    {"epoch": 0.5, "grad_norm": 1.5, "learning_rate": 4e-05, "loss": 2.5, "step": 10},
    {"epoch": 1.0, "grad_norm": math.nan, "learning_rate": 3e-05, "loss": 2.0, "step": 20},
    {
        "epoch": 1.0,
        "eval_loss": 2.25,
        "eval_accuracy": 0.5,
        "eval_runtime": 1.2,
        "eval_samples_per_second": 80.0,
        "step": 20,
    },
    {"epoch": 1.0, "step": 20, "total_flos": 1e15, "train_loss": 2.25, "train_runtime": 9.0},
]
"""As ``Trainer.log`` appends to it, with the sum of the training at the end."""


def state(history: list[dict[str, Any]]) -> str:
    """Return a ``trainer_state.json`` with the keys that transformers writes, indented as it does."""
    document = {
        "best_metric": None,
        "epoch": 1.0,
        "global_step": 20,
        "is_local_process_zero": True,
        "log_history": history,
        "logging_steps": 10,
        "max_steps": 20,
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def test_the_log_history_is_the_run(tmp_path: Path) -> None:
    """Steps and evaluations are rows; the mean over the training at its end is not."""
    path = tmp_path / "bert" / "trainer_state.json"
    path.parent.mkdir()
    path.write_text(state(HISTORY))
    (run,) = read([path]).runs
    assert run.id == "bert"
    assert run.rows[0] == Row(step=10, epoch=0.5, loss=2.5, grad_norm=1.5, learning_rate=4e-05)
    assert math.isnan(run.rows[1].grad_norm or 0.0)
    assert run.rows[2:] == (Row(step=20, epoch=1.0, evaluations={"eval_loss": 2.25, "eval_accuracy": 0.5}),)
    assert (run.config["max_steps"], run.config["logging_steps"]) == (20, 10)


def test_what_transformers_writes_is_read(tmp_path: Path) -> None:
    """The real library's file is understood, where the library is installed."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path / "trainer_state.json"
    transformers.TrainerState(log_history=HISTORY, max_steps=20).save_to_json(str(path))
    (run,) = read([path]).runs
    assert [row.loss for row in run.rows] == [2.5, 2.0, None]


def test_a_state_without_a_history_is_no_log(tmp_path: Path) -> None:
    """A file such as ``config.json`` is told apart."""
    path = tmp_path / "trainer_state.json"
    path.write_text(state([]))
    with pytest.raises(NotALog, match="JSON without a log_history that holds entries"):
        read([path])


def test_lines_are_entries_and_nested_names_are_joined(tmp_path: Path) -> None:
    """Objects within objects, numbers in quotes and other tools' NaN are read."""
    path = tmp_path / "run.jsonl"
    lines = [
        '{"step": 1, "train": {"loss": 2.5, "grad_norm": "1.25"}, "note": "warm", "list": [1, 2]}',
        '{"step": 2, "train": {"loss": "NaN", "grad_norm": Infinity}}',
        "",
        '{"step": 2, "val": {"loss": 2.0}}',
    ]
    path.write_text("\n".join(lines))
    rows = read([path]).runs[0].rows
    assert rows[0] == Row(step=1, loss=2.5, grad_norm=1.25)
    assert math.isnan(rows[1].loss or 0.0)
    assert rows[1].grad_norm == math.inf
    assert rows[2:] == (Row(step=2, evaluations={"eval_loss": 2.0}),)


def test_what_is_logged_in_pieces_is_one_step(tmp_path: Path) -> None:
    """A rate or a norm on a line of its own belongs to its step; a second loss does not, nor another step."""
    path = tmp_path / "run.jsonl"
    entries: list[dict[str, Any]] = [
        {"step": 1, "lr": 0.1},
        {"step": 1, "loss": 2.0},
        {"step": 1, "loss": 3.0},
        {"step": 2, "grad_norm": 1.0},
        {"step": 2, "gpu": 0.5},
        {"step": 2, "val_loss": 1.0},
        {"step": 2, "val_acc": 0.5},
    ]
    path.write_text("\n".join(map(json.dumps, entries)))
    assert read([path]).runs[0].rows == (
        Row(step=1, learning_rate=0.1, loss=2.0),
        Row(step=1, loss=3.0),
        Row(step=2, grad_norm=1.0),
        Row(step=2, evaluations={"eval_loss": 1.0, "eval_accuracy": 0.5}),
    )


def test_an_array_of_objects_is_read(tmp_path: Path) -> None:
    """As ``DataFrame.to_json(orient="records")`` writes it."""
    path = tmp_path / "run.json"
    path.write_text(json.dumps([{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}]))
    assert read([path]).runs[0].rows == (Row(step=1, loss=2.0),)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"step": 1, "loss": 2}\n{"step": 2, "lo', "line 2: it is not JSON (Unterminated string"),
        ('{"step": 1, "loss": 2}\n7\n', "line 2: it is '7' and no JSON object"),
        ('{"step": 1, "loss": 2}\n{"step": 2, "loss": "x"}', "line 2: loss is 'x', which is no number"),
        ('{"step": 1, "loss": true}\n', "line 1: loss is 'True', which is no number"),
        ("[7]", "object 1: it is '7' and no JSON object"),
        ("{\n  broken", "line 2: it is not JSON"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    """One sentence names the file, the line and the value."""
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(RecordedRunError) as error:
        read([path])
    assert str(error.value).startswith(f"{path}, ")
    assert sentence in str(error.value)


def test_deep_nesting_is_an_error_and_no_crash(tmp_path: Path) -> None:
    """A file that would exhaust the parser ends in a sentence."""
    path = tmp_path / "run.json"
    path.write_text("[" * 200_000)
    with pytest.raises(RecordedRunError):
        read([path])
