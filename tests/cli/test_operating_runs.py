"""The command against a real controller process, with a stand-in trainer behind it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

import pytest
import requests
from tests.cli.support import Run, Served, StartTrainer, serving, until


@pytest.mark.parametrize(
    ("arguments", "action", "params"),
    [
        (("pause",), "pause", {}),
        (("pause", "--snapshot"), "pause_and_snapshot", {}),
        (("resume",), "resume", {}),
        (("snapshot",), "snapshot", {}),
        (("snapshot", "--pin"), "snapshot", {"pin": True}),
        (("set-lr", "3e-4"), "set_lr", {"value": 3e-4}),
        (("clip-gradients", "0.5", "--steps", "100"), "clip_gradients", {"max_norm": 0.5, "steps": 100}),
        (("skip-batches", "200"), "skip_batches", {"count": 200}),
        (("set-sampling", "--layers", "0", "--weights", "5"), "set_sampling", {"layers": 0, "weights": 5}),
        (("rollback", "--data", "rewind"), "rollback", {"data": "rewind"}),
        (
            ("act", "drop_source", "--param", "name=web", "--param", "share=0.5"),
            "drop_source",
            {"name": "web", "share": 0.5},
        ),
        (("reduce-lr", "--factor", "0.3"), "reduce_lr", {"factor": 0.3}),
        (
            ("rollback", "--step", "100", "--lr-factor", "0.5"),
            "rollback",
            {"step": 100, "lr_factor": 0.5},
        ),
        (
            ("rollback", "--before-step", "1", "--or-oldest"),
            "rollback",
            {"before_step": 1, "or_oldest": True},
        ),
        (("stop", "--no-snapshot"), "stop", {"snapshot": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
@pytest.mark.usefixtures("controller")
def test_an_action_reaches_the_trainer_and_its_answer_comes_back(
    run: Run,
    trainer: StartTrainer,
    name: str,
    arguments: tuple[str, ...],
    action: str,
    params: dict[str, object],
) -> None:
    """Every action is sent with its parameters and reason; 0 means that the trainer applied it."""
    trainer(name)
    finished = run(arguments[0], name, *arguments[1:], "--reason", "[odd] loss", "--json")
    assert finished.code == 0, finished.err
    command = json.loads(finished.out)["command"]
    assert command["action"] == action
    assert params.items() <= command["params"].items()
    assert command["reason"] == "[odd] loss"
    assert command["source"] == "operator"
    assert command["state"] == "applied"
    assert command["step"] == 120
    assert f"{action} of run {name}" in finished.err
    assert "applied at step 120" in finished.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("act", "drop_sorce"), 1, "did you mean 'drop_source'?"),
        (("act", "Drop"), 2, "use 1 to 64"),
        (("act", "drop_source", "--param", "web"), 2, "is not NAME=VALUE"),
        (("set-lr", "0"), 2, "greater than 0"),
        (("set-sampling",), 2, "give at least one of grad_norm"),
    ],
)
@pytest.mark.usefixtures("controller")
def test_what_cannot_be_commanded_is_said(
    run: Run, trainer: StartTrainer, name: str, arguments: tuple[str, ...], code: int, words: str
) -> None:
    """The command line refuses what no run can do, the controller what this run has not registered."""
    trainer(name)
    finished = run(arguments[0], name, *arguments[1:])
    assert finished.code == code
    assert words in finished.err
    assert finished.err.count("\n") == 1


@pytest.mark.parametrize("result", ["refused", "failed", "expired"])
@pytest.mark.usefixtures("controller")
def test_an_answer_other_than_applied_ends_with_1(
    run: Run, trainer: StartTrainer, name: str, result: str
) -> None:
    """What the trainer did not carry out is said with its reason."""
    trainer(name, result)
    finished = run("pause", name)
    assert finished.code == 1
    assert f"{result} at step 120" in finished.out
    assert "(pause {})" in finished.out


@pytest.mark.usefixtures("controller")
def test_a_trainer_that_does_not_answer_ends_with_4(run: Run, trainer: StartTrainer, name: str) -> None:
    """The wait ends at its deadline, the command stays, and it shows among those without an answer."""
    trainer(name, None)
    finished = run("pause", name, "--timeout", "0.5")
    assert finished.code == 4
    assert "after 0.5 s" in finished.err
    assert "stays in force" in finished.err
    shown = run("status", name)
    assert shown.code == 0
    assert "Commands without an answer:" in shown.out
    assert "pause" in shown.out


@pytest.mark.usefixtures("controller")
def test_without_waiting_an_accepted_command_ends_with_0(run: Run, trainer: StartTrainer, name: str) -> None:
    """``--no-wait`` returns as soon as the journal has the command; its state says that it is not done."""
    trainer(name, None)
    finished = run("pause", name, "--no-wait", "--json")
    assert finished.code == 0
    assert json.loads(finished.out)["command"]["state"] in {"pending", "written"}


@pytest.mark.usefixtures("controller")
def test_a_run_that_does_not_exist_ends_with_1(run: Run) -> None:
    """The controller's own sentence is passed on."""
    finished = run("pause", "nobody")
    assert finished.code == 1
    assert "nobody" in finished.err
    assert finished.err.count("\n") == 1


@pytest.mark.usefixtures("controller")
def test_a_wrong_token_ends_with_3(run: Run, trainer: StartTrainer, name: str, tmp_path: Path) -> None:
    """The file that holds the wrong token is named; status does not fall back, since the controller is up."""
    trainer(name)
    token = tmp_path / "token"
    token.write_text("not-the-controller's")
    for command in ("pause", "status"):
        finished = run(command, name, "--token-file", str(token))
        assert finished.code == 3
        assert f"does not accept the token in {token}" in finished.err


def test_another_server_is_not_taken_for_a_controller(run: Run, home: Path, free_port: int) -> None:
    """What answers without being a controller ends with 3 as well."""
    token = home / "tokens" / "operator"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(free_port)],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=home,
    )
    try:
        url = f"http://127.0.0.1:{free_port}"
        until(lambda: "refused" not in run("commands", "--controller", url).err, 30.0)
        finished = run("commands", "--controller", url)
        assert finished.code == 3
        assert "is not a trainswitch controller" in finished.err
    finally:
        server.terminate()
        server.wait(10.0)


@pytest.mark.usefixtures("controller")
def test_status_lists_runs_and_shows_one(run: Run, trainer: StartTrainer, name: str) -> None:
    """Without a name, every run has a row; with one, its whole status is there."""
    trainer(name)
    trainer(f"{name}.other")
    listed = run("status", "--json")
    document = json.loads(listed.out)
    assert document["source"] == "controller"
    rows = {row["run"]: (row["state"], row["step"]) for row in document["runs"]}
    assert rows[name] == rows[f"{name}.other"] == ("running", 120)
    assert name in listed.err
    shown = run("status", name)
    assert shown.out.startswith(f"Run {name} is running at step 120, as reported 0 s ago by process ")


def test_status_of_a_torn_file_says_so(
    run: Run, controller: Served, trainer: StartTrainer, name: str
) -> None:
    """A status.json that cannot be read is a sentence in the answer, not the end of it."""
    trainer(name, None)
    (controller.home / "control" / name / "status.json").write_text('{"schema": ')
    finished = run("status", name)
    assert finished.code == 0
    assert "is not complete JSON" in finished.out


@pytest.mark.usefixtures("controller")
def test_commands_and_episodes_are_listed(run: Run, trainer: StartTrainer, name: str) -> None:
    """The journal's history comes newest first; no alert yet is said in words."""
    trainer(name)
    assert run("pause", name).code == run("resume", name).code == 0
    listed = run("commands", name, "--limit", "2", "--json")
    assert [row["action"] for row in json.loads(listed.out)["commands"]] == ["resume", "pause"]
    assert "operator" in listed.err
    assert "No alert has reached the controller." in run("episodes", name).out


def fire(served: Served, run: str, fingerprint: str = "0123456789abcdef") -> None:
    """Deliver an alert of `run` that begins now, as Alertmanager does."""
    alert = {
        "status": "firing",
        "labels": {"alertname": "TrainNonFinite", "run": run, "severity": "critical"},
        "annotations": {"summary": "The loss is not a number."},
        "startsAt": datetime.now(timezone.utc).isoformat(),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": fingerprint,
    }
    webhook = {
        "version": "4",
        "groupKey": "{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "controller",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": [alert],
    }
    token = (served.home / "tokens" / "alertmanager").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    requests.post(f"{served.url}/api/v1/alerts", json=webhook, headers=headers, timeout=10).raise_for_status()


@pytest.fixture
def approving(tmp_path: Path) -> Path:
    """A policy that proposes and waits."""
    policy = tmp_path / "policy.yml"
    policy.write_text("version: 1\nmode: approve\nalerts: {TrainNonFinite: {ladder: [{action: pause}]}}\n")
    return policy


def test_an_alert_s_command_waits_for_approval(
    run: Run, home: Path, trainer: StartTrainer, free_port: int, approving: Path
) -> None:
    """In mode 'approve', episodes show what was decided, and approve lets the trainer have it."""
    trainer("gpt2")
    with serving(home, free_port, f"--policy={approving}") as served:
        fire(served, "gpt2")

        shown = run("episodes", "gpt2", "--controller", served.url, "--json")
        (episode,) = json.loads(shown.out)["episodes"]
        (decision,) = episode["decisions"]
        assert decision["action"] == "pause"
        assert "TrainNonFinite" in shown.err
        waiting = run("approve", decision["command_id"], "--controller", served.url)
        assert waiting.code == 0, waiting.err
        assert "applied at step 120" in waiting.out
        again = run("approve", decision["command_id"], "--controller", served.url)
        assert again.code == 1


def test_an_alert_s_command_can_be_rejected(
    run: Run, home: Path, trainer: StartTrainer, free_port: int, approving: Path
) -> None:
    """What waits shows in status with the time that is left; rejected, the trainer never gets it."""
    stand_in = trainer("gpt2")
    with serving(home, free_port, f"--policy={approving}") as served:
        fire(served, "gpt2")
        where = ("--controller", served.url)
        (row,) = json.loads(run("status", "--json", *where).out)["runs"]
        assert row["awaiting_approval"] == 1
        shown = run("status", "gpt2", "--json", *where)
        (waiting,) = json.loads(shown.out)["commands"]
        assert waiting["state"] == "awaiting_approval"
        assert " s left)" in shown.err
        rejected = run("reject", waiting["id"], "--reason", "one bad file", "--json", *where)
        assert rejected.code == 0, rejected.err
        command = json.loads(rejected.out)["command"]
        assert (command["state"], command["detail"]) == (
            "rejected",
            "an operator rejected it: one bad file",
        )
        assert run("reject", waiting["id"], *where).code == 1
        assert run("approve", waiting["id"], *where).code == 1
        after = json.loads(run("status", "gpt2", "--json", *where).out)
        assert after["commands"] == []
        assert [one["id"] for one in after["unapproved"]] == [waiting["id"]]
        run("snapshot", "gpt2", *where)
    assert [outcome.action for outcome in stand_in._outcomes] == ["snapshot"]


@pytest.mark.usefixtures("controller")
def test_approving_what_does_not_exist_ends_with_1(run: Run) -> None:
    """The id is named."""
    finished = run("approve", "nothing")
    assert finished.code == 1
    assert "nothing" in finished.err


def test_status_reads_the_control_folder_while_the_controller_is_down(
    run: Run, home: Path, trainer: StartTrainer, free_port: int
) -> None:
    """The answer is the same apart from its source, and standard error says where it comes from."""
    trainer("gpt2")
    (home / "control" / "torn").mkdir()
    (home / "control" / "torn" / "status.json").write_text("{")
    (home / "control" / "..no run").mkdir()
    token = home / "tokens" / "operator"
    token.parent.mkdir()
    token.write_text("secret")
    url = f"http://127.0.0.1:{free_port}"
    listed = run("status", "--controller", url, "--json")
    assert listed.code == 0
    assert f"Shown instead is what the trainers wrote to {home / 'control'}" in listed.err
    document = json.loads(listed.out)
    assert document["source"] == "control folder"
    gpt2, torn = document["runs"]
    assert (gpt2["run"], gpt2["state"], gpt2["step"], gpt2["error"]) == ("gpt2", "running", 120, None)
    assert torn["state"] is None
    assert "is not complete JSON" in torn["error"]
    shown = json.loads(run("status", "gpt2", "--controller", url, "--json").out)
    assert shown["status"]["pid"] == os.getpid()
    assert run("status", "nobody", "--controller", url).code == 2


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``trainswitch serve`` to its end."""
    command = [sys.executable, "-m", "trainswitch_controller", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_serve_refuses_a_taken_port(free_port: int) -> None:
    """Where somebody listens already, it ends with 1 and names the port."""
    with socket.create_server(("127.0.0.1", free_port)):
        answer = serve(f"--port={free_port}")
    assert answer.returncode == 1
    assert str(free_port) in answer.stderr
    assert "Traceback" not in answer.stderr


def test_serve_refuses_a_policy_that_does_not_exist(tmp_path: Path) -> None:
    """The missing file is named."""
    answer = serve("--policy", str(tmp_path / "none.yml"))
    assert answer.returncode == 1
    assert str(tmp_path / "none.yml") in answer.stderr
    assert "Traceback" not in answer.stderr


def test_serve_names_a_control_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file where the folder belongs is named with the option that avoids it."""
    (tmp_path / "file").touch()
    answer = serve("--control-dir", str(tmp_path / "file" / "control"))
    assert answer.returncode == 1
    assert "--control-dir" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_serve_makes_no_token_that_was_named(home: Path, tmp_path: Path) -> None:
    """Only the default tokens are made; a named one that is missing is an error."""
    answer = serve("--operator-token-file", str(tmp_path / "token"))
    assert answer.returncode == 1
    assert str(tmp_path / "token") in answer.stderr
    assert not (tmp_path / "token").exists()
    assert (home / "tokens" / "alertmanager").exists()


def test_serve_refuses_half_of_tls(tmp_path: Path) -> None:
    """A certificate without its key is a wrong setting: exit code 2."""
    answer = serve("--tls-cert", str(tmp_path / "cert.pem"))
    assert answer.returncode == 2
    assert "tls_key" in answer.stderr
