"""Waiting for the trainer's answer to a command."""

from __future__ import annotations

import time
from typing import Any

from trainswitch.intervention.commands import RESULTS
from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.errors import EXIT_FAILED, ControllerUnreachable, WaitTimeout
from trainswitch_controller.cli.output import Report, complain, console

_POLL_INTERVAL_S = 0.1
_ENDS = (*RESULTS, "rejected")


def wait_for_answer(client: ControllerClient, command: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Return `command` once the trainer, or the controller in its place, has answered it.

    A controller that is restarted meanwhile loses nothing: it is asked again until the deadline.

    Raises:
        WaitTimeout: no answer within `timeout_s` seconds.
        ControllerUnauthorised, ControllerRefused: as the controller says.
    """
    deadline = time.monotonic() + timeout_s
    where = describe(command)
    with console(stderr=True).status(f"{where}: waiting for the trainer") as progress:
        while command["state"] not in _ENDS:
            if time.monotonic() >= deadline:
                raise WaitTimeout(
                    f"{where} is still {spoken_state(command)} after {timeout_s:g} s: "
                    f"see 'trainswitch status {command['run']}'; it stays in force until it expires."
                )
            try:
                time.sleep(_POLL_INTERVAL_S)
                command = client.command(command["id"])
                progress.update(f"{where}: {spoken_state(command)}")
            except ControllerUnreachable:
                progress.update(f"{where}: the controller does not answer, asking again")
            except KeyboardInterrupt:
                complain(f"{where} stays in force until it expires.")
                raise
    return command


def report_command(report: Report, command: dict[str, Any]) -> int:
    """Print what became of `command` and return the exit code that says the same."""
    detail = str(command.get("detail") or "").rstrip(".")
    step = f" at step {command['step']}" if command.get("step") is not None else ""
    took = ""
    if command.get("finished_at") is not None:
        took = f" after {max(0.0, command['finished_at'] - command['created_at']):.2f} s"
    text = f"{describe(command)}: {spoken_state(command)}{step}{took}" + (f" ({detail})" if detail else "")
    report.say(text + ".")
    report.result({"command": command})
    failed = command["state"] in _ENDS and command["state"] != "applied"
    return EXIT_FAILED if failed else 0


def describe(command: dict[str, Any]) -> str:
    """Name a command for people: its action, run and id."""
    return f"{command['action']} of run {command['run']} (command {command['id']})"


def spoken_state(command: dict[str, Any]) -> str:
    """Return the state of a command in words, with what it waits for."""
    return {
        "awaiting_approval": "waiting for 'trainswitch approve'",
        "pending": "accepted, not yet written for the trainer",
        "written": "written, not yet answered by the trainer",
    }.get(command["state"], str(command["state"]))
