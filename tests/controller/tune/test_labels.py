"""Where runs went wrong, as people say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainswitch_controller.errors import TuneError
from trainswitch_controller.replay.model import RecordedRun, Row
from trainswitch_controller.tune import Trouble, read_labels

RUNS = [RecordedRun(name, Path(name), tuple(Row(step=10 * n, loss=1.0) for n in range(20))) for name in "ab"]


def labels(folder: Path, text: str) -> Path:
    """Write a file of labels."""
    path = folder / "troubles.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_steps_are_rows_of_the_log(tmp_path: Path) -> None:
    """Both ends are among the trouble; a blank is the begin or the end of the run, two blanks are health."""
    path = labels(tmp_path, "run,from_step,to_step,what\na,45,70,spike\na,150,,divergence\nb,,,\n")
    assert read_labels(path, RUNS) == {
        "a": (Trouble("a", 5, 7, "spike"), Trouble("a", 15, 19, "divergence")),
        "b": (),
    }


def test_rows_can_be_named_instead(tmp_path: Path) -> None:
    """Logs without step numbers have rows."""
    assert read_labels(labels(tmp_path, "what, run ,from_row,to_row\nx,a,,3\n"), RUNS) == {
        "a": (Trouble("a", 0, 3, "x"),)
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("run,from,to\na,1,2\n", "need the columns run, from_step and to_step"),
        ("", "the first line has nothing"),
        ("run,from_step,to_step\nc,1,2\n", "line 2: there is no run 'c': "),
        ("run,from_step,to_step\na,x,2\n", "line 2: from_step is 'x', which is no number"),
        (
            "run,from_step,to_step\na,5000,6000\n",
            "run a has no row from 5000 to 6000: are these steps of its log?",
        ),
        ("run,from_row,to_row\na,5000,\n", "from 5000 to its end: are these rows of its log?"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, sentence: str) -> None:
    """One sentence names the file, the line and the value."""
    with pytest.raises(TuneError) as error:
        read_labels(labels(tmp_path, text), RUNS)
    assert sentence in str(error.value)
    assert "troubles.csv" in str(error.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """It names the file."""
    with pytest.raises(TuneError, match=r"none\.csv cannot be read"):
        read_labels(tmp_path / "none.csv", RUNS)


@pytest.mark.parametrize(
    ("start", "end", "met"), [(1, 3, True), (1, 2, False), (15, 20, True), (16, 20, False)]
)
def test_an_alert_near_a_trouble_is_about_it(start: int, end: int, met: bool) -> None:
    """Two rows before and five after still count: marks are rough, and rules look back."""
    assert Trouble("a", 5, 10).is_met_by(start, end) is met
