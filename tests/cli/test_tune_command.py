"""``trainswitch tune`` as a user meets it, with the real rules and a real Prometheus."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import Run

from trainswitch.config import load_config

EARLY, LATE = range(12, 20), range(200, 212)
"""Rows in which a run goes wrong: in the warm-up, where relative limits are silent, and after it."""


@dataclasses.dataclass(frozen=True)
class Logs:
    """Two healthy runs, one that goes wrong twice, and the labels that say so."""

    folder: Path
    labels: Path


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """Write the logs; healthy losses reach 6 in a single row."""
    folder = tmp_path / "logs"
    folder.mkdir()
    noise = random.Random(7)
    for name, high in (("calm", {150: 6.0}), ("steady", {}), ("ill", dict.fromkeys((*EARLY, *LATE), 9.0))):
        rows = [f"{row},{high.get(row, noise.gauss(2.0, 0.05)):.4f}" for row in range(300)]
        (folder / f"{name}.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    labels = tmp_path / "labels.csv"
    troubles = [f"ill,{rows.start},{rows.stop - 1},spike" for rows in (EARLY, LATE)]
    labels.write_text("\n".join(["run,from_step,to_step,what", *troubles, "calm,,,", "steady,,,"]) + "\n")
    return Logs(folder, labels)


def episodes(run: Run, logs: Logs, *options: str) -> list[dict[str, Any]]:
    """Return the episodes of the alerts that limits can fire, as ``trainswitch replay`` tells them."""
    done = run("replay", str(logs.folder), "--json", *options)
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    return [line for line in lines if line.get("alert") in {"TrainLossUnstable", "TrainLossSpike"}]


def meets(rows: range) -> Callable[[dict[str, Any]], bool]:
    """Return whether an episode of the run that went wrong is about these rows."""
    return lambda one: (
        one["run"] == "ill" and one["start_row"] <= rows.stop + 4 and one["end_row"] >= rows.start - 2
    )


@pytest.mark.timeout(600)
def test_what_is_promised_holds_when_the_written_configuration_is_replayed(
    run: Run, tmp_path: Path, logs: Logs
) -> None:
    """False alarms and troubles met are those of a replay by itself, with the real rules."""
    out = tmp_path / "limits.yml"
    done = run("tune", str(logs.folder), "--labels", str(logs.labels), "--out", str(out), "--json")
    assert done.code == 0, done.err
    proposal = json.loads(done.out)
    verified = proposal["verified"]
    assert (proposal["steps"], proposal["unlabelled"], len(proposal["troubles"])) == (900, [], 2)
    assert verified["critical"] == {
        "false_alarms": 0,
        "allowed": 0,
        "troubles_met": 2,
        "troubles_met_without_limits": 1,
    }
    assert verified["warning"]["false_alarms"] == 0
    assert proposal["configuration"] == out.read_text()

    limits = load_config(out).limits
    assert {limit.signal for limit in limits} == {"loss", "loss_ratio"}
    assert all(limit.value >= 6.0 for limit in limits if (limit.signal, limit.phase) == ("loss", "main"))
    assert all("troubles met in 900 steps of 3 runs: calm, ill, steady" in limit.reason for limit in limits)

    alone, found = episodes(run, logs), episodes(run, logs, "--config", str(out))
    critical = [one for one in found if one["severity"] == "critical"]
    assert any(map(meets(EARLY), critical))
    assert any(map(meets(LATE), critical))
    known = {(one["run"], one["alert"], one["severity"]) for one in alone}
    troubles = [one for one in found if meets(EARLY)(one) or meets(LATE)(one)]
    others = [one for one in found if one not in troubles]
    assert [one for one in others if (one["run"], one["alert"], one["severity"]) not in known] == []
    assert not any(map(meets(EARLY), [one for one in alone if one["severity"] == "critical"]))


def test_mistakes_are_said_before_the_work(run: Run, tmp_path: Path, logs: Logs) -> None:
    """What cannot be meant ends with 2, and what is there is not overwritten."""
    taken = tmp_path / "taken.yml"
    taken.write_text("mine: true\n")
    for options, sentence in (
        (("--out", str(taken)), "exists: remove it, or name another file."),
        (("--out", str(tmp_path / "none" / "x.yml")), "is in a folder that does not exist"),
        (("--signal", "los"), "--signal 'los' does not exist: use loss, grad_norm, loss_ratio."),
        (("--column", "los=x"), "there is no field 'los': did you mean 'loss'?"),
        (("--format", "xls"), "--format 'xls' does not exist: use one of csv, json-lines"),
    ):
        done = run("tune", str(logs.folder), *options)
        assert done.code == 2, done.err
        assert sentence in done.err
    assert taken.read_text() == "mine: true\n"


def test_labels_of_other_runs_are_refused(run: Run, tmp_path: Path, logs: Logs) -> None:
    """A run that was not given is named with the nearest that was."""
    labels = tmp_path / "other.csv"
    labels.write_text("run,from_step,to_step\nclam,1,2\n")
    done = run("tune", str(logs.folder), "--labels", str(labels))
    assert done.code == 1
    assert "there is no run 'clam': did you mean 'calm'?" in done.err


def test_the_help_has_examples(run: Run) -> None:
    """Somebody who asks sees a whole command line."""
    done = run("tune", "--help")
    assert done.code == 0
    assert "trainswitch tune logs/ --out limits.yml" in done.out
