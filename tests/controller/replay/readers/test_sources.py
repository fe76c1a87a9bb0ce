"""Which files are which runs, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainswitch.intervention.commands import check_run_name
from trainswitch_controller.errors import RecordedRunError
from trainswitch_controller.replay.readers import read
from trainswitch_controller.replay.readers.sources import names_of, unique

LOG = "step,loss\n1,2.0\n"
STATE = '{{\n "log_history": [{{"loss": {}, "step": 1}}]\n}}\n'


def log(path: Path, text: str = LOG) -> Path:
    """Write a log, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_folder_is_searched_and_what_is_no_log_is_passed_over(tmp_path: Path) -> None:
    """Logs are found at any depth, by their content; order does not depend on the file system."""
    log(tmp_path / "b.csv")
    log(tmp_path / "a" / "c.jsonl", '{"step": 1, "loss": 3.0}\n')
    log(tmp_path / "README.md", "nothing")
    log(tmp_path / "empty.csv", "")
    assert [run.id for run in read([tmp_path]).runs] == ["b", "c"]


def test_a_file_among_others_that_is_no_log_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    """A shell's ``*.csv`` may match an index; nothing is dropped without a word."""
    index = log(tmp_path / "index.csv", "id,licence\na,MIT\n")
    found = read([log(tmp_path / "a.csv"), index])
    assert [run.id for run in found.runs] == ["a"]
    (sentence,) = found.left_out
    assert str(index) in sentence


def test_of_the_checkpoints_of_a_run_the_last_one_counts(tmp_path: Path) -> None:
    """Each Hugging Face checkpoint repeats the history so far; a state at the end has all of it."""
    for step in (500, 1000, 1500):
        log(tmp_path / "bert" / f"checkpoint-{step}" / "trainer_state.json", STATE.format(step))
    found = read([tmp_path])
    assert [(run.id, run.rows[0].loss) for run in found.runs] == [("bert-checkpoint-1500", 1500.0)]
    assert len(found.left_out) == 2
    log(tmp_path / "bert" / "trainer_state.json", STATE.format(7))
    assert [run.rows[0].loss for run in read([tmp_path]).runs] == [7.0]


def test_the_format_chooses_among_the_logs_of_a_folder(tmp_path: Path) -> None:
    """A training that was logged twice is read once."""
    log(tmp_path / "a.csv")
    log(tmp_path / "b.jsonl", '{"step": 1, "loss": 3.0}\n')
    assert [run.id for run in read([tmp_path], form="json-lines").runs] == ["b"]
    with pytest.raises(RecordedRunError, match="holds no log in the format wandb"):
        read([tmp_path], form="wandb")


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """It is no log that is left out: it is a mistake."""
    with pytest.raises(RecordedRunError, match=r"none\.csv does not exist"):
        read([log(tmp_path / "a.csv"), tmp_path / "none.csv"])


def test_a_folder_without_logs_is_an_error(tmp_path: Path) -> None:
    """The sentence says what was looked for."""
    with pytest.raises(RecordedRunError, match="holds no log of a run: looked for are"):
        read([tmp_path])


def test_a_path_that_is_given_twice_is_one_run(tmp_path: Path) -> None:
    """Overlapping patterns of a shell do no harm."""
    path = log(tmp_path / "a.csv")
    assert len(read([path, path, tmp_path]).runs) == 1


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["/x/gpt2.csv"], ["gpt2"]),
        (["/x/a/run.csv", "/x/b/run.csv"], ["a-run", "b-run"]),
        (["/x/a/gpt.csv", "/x/a/bert.csv"], ["gpt", "bert"]),
        (["/x/gan/version_0/metrics.csv"], ["gan-version_0"]),
        (["/x/a/tb/events.out.tfevents.1.host", "/x/b/tb/events.out.tfevents.2.host"], ["a-tb", "b-tb"]),
        (["/x/my run(1).csv"], ["my-run-1"]),
        (["/a/b.csv", "/a/b.jsonl"], ["a-b", "a-b-2"]),
    ],
)
def test_names_are_as_long_as_they_must_be(paths: list[str], names: list[str]) -> None:
    """A name tells runs apart, and can be a label and a folder."""
    assert names_of([Path(path) for path in paths]) == names


def test_names_are_valid_and_differ_also_when_they_are_cut() -> None:
    """A name is never longer than a run's name may be."""
    names = unique(["x" * 300, "x" * 300, "…", "x" * 300])
    assert len(set(names)) == 4
    for name in names:
        check_run_name(name)
