"""The commands that only look: status, commands, episodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer

from trainswitch.errors import ControlFileError
from trainswitch.intervention.commands import RUN_NAME, check_run_name
from trainswitch.intervention.control_file import commands_path, read_commands, read_status, status_path
from trainswitch_controller.cli.client import connect
from trainswitch_controller.cli.errors import ControllerUnreachable, UsageProblem
from trainswitch_controller.cli.options import (
    ControllerOption,
    HomeOption,
    JsonOption,
    LimitOption,
    OptionalRunArgument,
    TokenFileOption,
    resolve_home,
)
from trainswitch_controller.cli.output import Report, ago, complain


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    app.command(epilog="Example: trainswitch status gpt2 --json")(status)
    app.command(epilog="Example: trainswitch commands gpt2 --limit 5")(commands)
    app.command(epilog="Example: trainswitch episodes gpt2")(episodes)


def status(
    run: OptionalRunArgument = None,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the runs are doing; read from the control folder while the controller is down."""
    if run is not None:
        check_run_name(run)
    folder = resolve_home(home)
    source = "controller"
    try:
        with connect(folder, controller, token_file) as client:
            document = {"runs": client.runs()} if run is None else client.run(run)
    except ControllerUnreachable as error:
        control = folder / "control"
        if not control.is_dir():
            raise
        complain(f"{error} Shown instead is what the trainers wrote to {control}.")
        source = "control folder"
        document = {"runs": _runs_in(control)} if run is None else _run_in(control, run)
    report = Report(as_json=as_json)
    if run is None:
        _show_runs(report, document["runs"])
    else:
        _show_run(report, document)
    report.result({"source": source, **document})


def commands(
    run: OptionalRunArgument = None,
    limit: LimitOption = 20,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List commands and what became of them."""
    with connect(resolve_home(home), controller, token_file) as client:
        rows = client.commands(run and check_run_name(run), limit)
    report = Report(as_json=as_json)
    _show_commands(report, rows)
    report.result({"commands": rows})


def episodes(
    run: OptionalRunArgument = None,
    limit: LimitOption = 20,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List alert episodes, and what was decided about each and why."""
    with connect(resolve_home(home), controller, token_file) as client:
        rows = client.episodes(run and check_run_name(run), limit)
    report = Report(as_json=as_json)
    if not rows:
        report.say("No alert has reached the controller.")
    else:
        report.table(
            (
                *("EPISODE", "RUN", "ALERT", "SEVERITY", "STATE", "BEGAN", "SUSPECT"),
                *("OUTCOME", "ACTION", "REASON"),
            ),
            (
                (
                    *(row[key] for key in ("id", "run", "alertname", "severity", "state")),
                    ago(row["starts_at"]),
                    _suspect(row),
                    *(decision.get(key) for key in ("outcome", "action", "reason")),
                )
                for row in rows
                for decision in (row["decisions"] or [{}])
            ),
        )
    report.result({"episodes": rows})


def _suspect(row: dict[str, Any]) -> str | None:
    """Name the first suspect of an episode's incident."""
    suspects = (row.get("incident") or {}).get("suspects")
    return f"{suspects[0]['kind']}: {suspects[0]['name']}" if suspects else None


def _show_runs(report: Report, runs: list[dict[str, Any]]) -> None:
    if not runs:
        report.say("No run has reported yet.")
        return
    report.table(
        ("RUN", "STATE", "STEP", "REPORTED", "ANSWERED", "TO APPROVE", "PROBLEM"),
        (
            (
                row["run"],
                row["state"],
                row["step"],
                ago(row["updated_at"]),
                row["applied_seq"],
                row.get("awaiting_approval") or None,
                row["error"],
            )
            for row in runs
        ),
    )


def _show_run(report: Report, document: dict[str, Any]) -> None:
    found = document["status"]
    if found is not None:
        report.say(
            f"Run {document['run']} is {found['state']} at step {found['step']}, "
            f"as reported {ago(found['updated_at'])} by process {found['pid']} on {found['node']}."
        )
        if found["checkpoints"]:
            report.table(
                ("CHECKPOINT", "KIND", "SAVED", "PATH"),
                (
                    (entry["step"], entry["kind"], ago(entry["created_at"]), entry["path"])
                    for entry in found["checkpoints"]
                ),
            )
    else:
        report.say(
            f"Run {document['run']} has not reported: {document['status_error'] or 'no status.json yet.'}"
        )
    if document["commands"]:
        report.say("Commands without an answer:")
        _show_commands(report, document["commands"])
    if document.get("unapproved"):
        report.say("Commands of the last day that nobody approved in time, or that were rejected:")
        _show_commands(report, document["unapproved"])


def _show_commands(report: Report, rows: list[dict[str, Any]]) -> None:
    if not rows:
        report.say("No command has been given.")
        return
    report.table(
        ("COMMAND", "RUN", "ACTION", "STATE", "STEP", "GIVEN", "BY", "ALERT SINCE", "DETAIL"),
        (
            (
                *(row.get(key) for key in ("id", "run", "action")),
                _state(row),
                row.get("step"),
                ago(row.get("created_at")),
                row.get("alertname") or row.get("source"),
                _recovery(row),
                row.get("detail") or row.get("reason"),
            )
            for row in rows
        ),
    )


def _state(row: dict[str, Any]) -> str | None:
    """Return a command's state, with the time that is left for its approval."""
    state: str | None = row.get("state")
    if state != "awaiting_approval":
        return state
    return f"{state} ({max(0.0, row['expires_at'] - time.time()):.0f} s left)"


def _recovery(row: dict[str, Any]) -> str | None:
    """Say what the alert has done since it was answered with the command."""
    said = (
        f"{one['result']} after {one['seconds']:.0f} s"
        + (f", {one['steps']} steps" if one["steps"] is not None else "")
        for one in row.get("recovery") or ()
    )
    outcome = row.get("outcome") or {}
    cost = (
        template.format(outcome[key])
        for key, template in (("gpu_seconds", "{:.0f} GPU-s"), ("loss_ratio", "loss {:.2f} of its forecast"))
        if outcome.get(key) is not None
    )
    return "; ".join((*said, *cost)) or None


def _runs_in(control: Path) -> list[dict[str, Any]]:
    """Return the rows that the controller would, from the files of the control folder."""
    rows = []
    for folder in sorted(control.iterdir()):
        if not (folder.is_dir() and RUN_NAME.fullmatch(folder.name)):
            continue
        found = _run_in(control, folder.name)
        status = found["status"] or {}
        values = {key: status.get(key) for key in ("state", "step", "updated_at", "applied_seq")}
        rows.append({"run": folder.name, **values, "error": found["status_error"]})
    return rows


def _run_in(control: Path, run: str) -> dict[str, Any]:
    """Return what the controller would say about one run, from its two files."""
    if not (control / run).is_dir():
        raise UsageProblem(
            f"run {run!r} has no folder in {control}: 'trainswitch status' lists those that do."
        )
    found = pending = problem = None
    try:
        found = read_status(status_path(control, run), run)
        pending = read_commands(commands_path(control, run), run)
    except ControlFileError as error:
        problem = str(error)
    answered = found.applied_seq if found is not None else 0
    return {
        "run": run,
        "status": found.model_dump(mode="json", by_alias=True) if found is not None else None,
        "status_error": problem,
        "commands": [
            {
                **command.model_dump(mode="json"),
                "run": run,
                "state": "written",
                "created_at": command.issued_at,
            }
            for command in (pending.commands if pending is not None else ())
            if command.seq > answered
        ],
    }
