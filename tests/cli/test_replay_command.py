"""``trainswitch replay`` as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cli.support import Run, until

LIMIT = """
groups:
  - name: mine
    interval: 1s
    rules:
      - alert: LossHigh
        expr: max by (run) (train_loss > 5)
        labels: {severity: critical, action: pause}
"""
POLICY = """
version: 1
cooldown: 0s
alerts:
  LossHigh:
    ladder: [{action: reduce_lr, params: {factor: 0.5}}]
"""


def write_log(path: Path, rows: int, high: tuple[int, ...] = ()) -> Path:
    """Write a log whose loss is high in some rows."""
    lines = [f"{row},{9.0 if row in high else 2.0 + row % 7 / 100}" for row in range(rows)]
    path.write_text("\n".join(["step,loss", *lines]) + "\n")
    return path


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Return a rule file with one alert."""
    path = tmp_path / "mine.yml"
    path.write_text(LIMIT)
    return path


def lines_of(text: str) -> list[dict[str, Any]]:
    """Return the JSON object of each line."""
    return [json.loads(line) for line in text.splitlines()]


def test_json_names_every_run_and_every_episode(run: Run, tmp_path: Path, rules: Path) -> None:
    """A silent run has a line without an alert; rows count from 0."""
    odd = write_log(tmp_path / "odd.csv", 40, high=(20, 21))
    calm = write_log(tmp_path / "calm.csv", 30)
    done = run("replay", str(odd), str(calm), "--rules", str(rules), "--json", "--jobs", "1")
    assert done.code == 0, done.err
    lines = lines_of(done.out)
    assert [(line["run"], line["rows"]) for line in lines if "rows" in line] == [("odd", 40), ("calm", 30)]
    (episode,) = (line for line in lines if "alert" in line)
    assert {
        name: episode[name] for name in ("run", "alert", "severity", "start_row", "end_row", "action")
    } == {
        "run": "odd",
        "alert": "LossHigh",
        "severity": "critical",
        "start_row": 20,
        "end_row": 21,
        "action": "pause",
    }


def test_the_table_says_what_fired_and_what_the_policy_makes_of_it(
    run: Run, tmp_path: Path, rules: Path
) -> None:
    """The alert asks for one thing, one's own policy does another."""
    log = write_log(tmp_path / "odd.csv", 40, high=(20,))
    policy = tmp_path / "policy.yml"
    policy.write_text(POLICY)
    done = run("replay", str(log), "--rules", str(rules), "--policy", str(policy), "--jobs", "1")
    assert done.code == 0, done.err
    first = next(line.split() for line in done.out.splitlines() if line.startswith("odd"))
    assert first == ["odd", "LossHigh", "critical", "20", "20", "pause"]
    assert "reduce_lr" in done.out
    assert "1 runs of 40 rows; episodes: 1 critical; runs without any: 0." in done.out


def test_limits_of_a_configuration_hold(run: Run, tmp_path: Path) -> None:
    """``--config`` brings the run's own limits, which the committed rules read."""
    log = write_log(tmp_path / "odd.csv", 60)
    config = tmp_path / "config.yml"
    config.write_text("limits:\n  - {signal: loss, value: 1.0}\n")
    silent = run("replay", str(log), "--json", "--jobs", "1")
    done = run("replay", str(log), "--json", "--jobs", "1", "--config", str(config))
    assert (silent.code, done.code) == (0, 0), silent.err + done.err
    assert not [line for line in lines_of(silent.out) if line.get("severity") == "critical"]
    assert {line["alert"] for line in lines_of(done.out) if line.get("severity") == "critical"} == {
        "TrainLossUnstable"
    }


def test_a_page_is_written(run: Run, tmp_path: Path, rules: Path) -> None:
    """One HTML file with the run's name, and standard output stays JSON."""
    log = write_log(tmp_path / "odd.csv", 40, high=(20,))
    page = tmp_path / "page.html"
    done = run("replay", str(log), "--rules", str(rules), "--html", str(page), "--json", "--jobs", "1")
    assert done.code == 0, done.err
    assert lines_of(done.out)
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "LossHigh" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nowhere.csv"], 1, "nowhere.csv does not exist"),
        (["{log}", "--html", "{folder}/no/page.html"], 2, "no/page.html is in a folder that does not exist"),
        (["{log}", "--rules", "{folder}/none.yml"], 2, "none.yml"),
        (["{log}", "--rules", "{log}"], 1, "no list 'groups'"),
        (["{log}", "--pace", "0"], 2, "--pace"),
        (["{log}", "--bin-dir", "{folder}", "--config", "{folder}/none.yml"], 2, "none.yml"),
    ],
)
def test_what_cannot_be_meant_is_said_before_the_work(
    run: Run, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    """One sentence names it, and the exit code tells a wrong argument from trouble."""
    log = write_log(tmp_path / "log.csv", 10)
    done = run("replay", *(one.format(log=log, folder=tmp_path) for one in arguments))
    assert done.code == code
    assert said in " ".join(done.err.split()) + "".join(done.err.split("\n"))
    assert "Traceback" not in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind_when_it_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    """No process outlives the command, however it ends; if it can, it removes the data, too."""
    logs = [str(write_log(tmp_path / f"{name}.csv", 20_000)) for name in "ab"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainswitch_controller", "replay", *logs, "--jobs", "2"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        parent = psutil.Process(process.pid)

        def players() -> list[psutil.Process]:
            return [one for one in parent.children(recursive=True) if "spawn_main" in " ".join(one.cmdline())]

        until(lambda: len(players()) == 2, 60.0)
        children = parent.children(recursive=True)
        assert any("prometheus" in one.name() for one in children)
        process.send_signal(number)
        _, said = process.communicate(timeout=20.0)
    finally:
        process.kill()
    _, alive = psutil.wait_procs(children, timeout=10.0)
    assert not alive
    if number == signal.SIGKILL:
        return
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    assert list(temporary.glob("trainswitch-replay-*")) == []
