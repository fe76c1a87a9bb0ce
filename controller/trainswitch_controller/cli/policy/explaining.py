"""``trainswitch policy explain``: what would happen if an alert fired now, and why."""

from __future__ import annotations

import difflib
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from trainswitch.intervention.commands import check_run_name
from trainswitch_controller.cli.assets import default_policy
from trainswitch_controller.cli.client import connect
from trainswitch_controller.cli.errors import ControllerUnauthorised, ControllerUnreachable
from trainswitch_controller.cli.options import (
    ControllerOption,
    HomeOption,
    JsonOption,
    TokenFileOption,
    resolve_home,
)
from trainswitch_controller.cli.output import Report, ago, complain
from trainswitch_controller.explain import explain as explain_alert
from trainswitch_controller.policy import load_policy

_SPOKEN = {
    "acted": "it would act",
    "observed": "it would only note this",
    "awaiting_approval": "it would wait for an operator's approval",
    "cooldown": "it would wait for the cooldown's end",
    "held": "it would wait until the run is resumed",
    "budget": "the budget is spent",
    "no_policy": "nothing would happen",
    "watchdog": "nothing would happen",
}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(
        epilog="Examples: trainswitch policy explain TrainLossUnstable --run gpt2 · "
        "trainswitch policy explain TrainNonFinite --policy policies/autonomous.yml"
    )(explain)


def explain(
    alert: Annotated[str, typer.Argument(metavar="ALERT", help="Name of the alert.", show_default=False)],
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN", help="Judge by this run's history.", show_default="no history"),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Judge by this policy alone; the controller is not asked.",
            show_default="the controller's",
        ),
    ] = None,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what would happen if an alert fired now: entry, mode, rung, cooldown, budgets, and the command."""
    if run is not None:
        check_run_name(run)
    source = "policy file"
    names: list[str] = []
    if policy is None:
        try:
            with connect(resolve_home(home), controller, token_file) as client:
                found, source = client.explain(alert, run), "controller"
        except (ControllerUnreachable, ControllerUnauthorised) as error:
            if controller is not None:
                raise
            policy = default_policy()
            complain(f"{error} Shown instead is what {policy} says of a run without history.")
    if policy is not None:
        rules, _ = load_policy(policy)
        names = list(rules.alerts)
        found = explain_alert(rules, alert, time.time(), run=run).document()
    report = Report(as_json=as_json)
    _show(report, found, names)
    report.result({"source": source, "policy": None if policy is None else str(policy), **found})


def _show(report: Report, found: dict[str, Any], names: list[str]) -> None:
    decision = found["decision"]
    whose = f"run {found['run']}" if found["run"] else "a run without history"
    command = f": {_command(decision)}" if decision["action"] else ""
    report.say(
        f"{found['alertname']}, if it fired now for {whose}: "
        f"{_SPOKEN.get(decision['outcome'], decision['outcome'])}{command}."
    )
    report.say(f"Why: {decision['reason']}")
    then = found["then"]
    if then is not None:
        report.say(f"Then: {_command(then) or then['outcome']}: {then['reason']}")
    if found["mode"] is None:
        near = difflib.get_close_matches(found["alertname"], names, n=1)
        if near:
            report.say(f"Did you mean {near[0]}?")
        return
    rung_next = (then or decision)["rung"]
    report.table(
        ("RUNG", "ACTION", "PARAMETERS", ""),
        (
            (number, rung["action"], _params(rung["params"]), "next" if number == rung_next else "")
            for number, rung in enumerate((*found["ladder"], {"action": "pause", "params": {}}), start=1)
        ),
    )
    report.say(f"Mode: {found['mode']}.")
    report.say(f"Cooldown: {found['cooldown']:.0f} s, {found['cooldown_left']:.0f} s left.")
    wait = found["escalate_after"]
    report.say(
        "If it lasts: no further rung."
        if wait is None
        else f"If it lasts: the next rung {wait:.0f} s after one was carried out, unless that holds the run."
    )
    for budget in found["budgets"]:
        of = "this run" if budget["scope"] == "run" else "all runs"
        report.say(
            f"Budget of {of}: {budget['left']} of {budget['interventions']} interventions in "
            f"{budget['window']:.0f} s left."
        )
    _show_history(report, found)


def _show_history(report: Report, found: dict[str, Any]) -> None:
    taken = found["last_taken"]
    if taken is not None:
        answer = "not answered yet" if taken["carried_out_at"] is None else ago(taken["carried_out_at"])
        report.say(f"Last rung: {taken['rung']} ({taken['action']}), carried out: {answer}.")
    for one in found["firing"]:
        decision = one["decision"]
        report.say(
            f"Fires already (episode {one['episode_id']}, since {ago(one['starts_at'])}): "
            f"{decision['outcome']}: {decision['reason']}"
        )


def _command(decision: dict[str, Any]) -> str:
    return " ".join(part for part in (decision["action"], _params(decision["params"])) if part)


def _params(params: dict[str, Any]) -> str:
    return json.dumps(params) if params else ""
