"""``trainswitch policy check``: the fault that would keep a controller from starting, and what is odd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report
from trainswitch_controller.cli.rules.shared import committed_rules
from trainswitch_controller.errors import RuleFileError
from trainswitch_controller.policy import PAUSES, Policy, load_policy
from trainswitch_controller.rulebook import Finding, against_policy, expand, read_rule_file


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog="Example: trainswitch policy check policies/autonomous.yml --strict")(check)


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The policy.", show_default=False)],
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            "--rules",
            metavar="PATH",
            help="Rule files of Prometheus, or folders of some, that it is to answer; may be repeated.",
            show_default="the committed ones",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with 1 for warnings as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a policy as the controller does at its start, and warn of what could not be meant."""
    policy, sha256 = load_policy(file)
    known = [rule for path in expand(rules or [committed_rules()]) for rule in read_rule_file(path)]
    if not any(rule.is_alert for rule in known):
        raise RuleFileError(["the files of --rules hold no alert: name those that Prometheus evaluates."])
    warnings = [*against_policy(str(file), policy, known, ()), *_out_of_reach(str(file), policy)]
    report = Report(as_json=as_json)
    for warning in warnings:
        report.say(f"warning: {warning}")
    report.say(
        f"{file} is valid: {len(policy.alerts)} alerts, mode {policy.mode}, "
        f"{len(warnings) or 'no'} warning{'' if len(warnings) == 1 else 's'}."
    )
    report.result(
        {
            "file": str(file),
            "sha256": sha256,
            "mode": policy.mode,
            "alerts": sorted(policy.alerts),
            "warnings": [vars(warning) for warning in warnings],
        }
    )
    if warnings and strict:
        raise typer.Exit(1)


def _out_of_reach(title: str, policy: Policy) -> Iterator[Finding]:
    """Say which rungs are never taken, and which waits are never waited for."""
    for name, rule in policy.alerts.items():
        actions = [rung.action for rung in rule.ladder]
        if "stop" in actions[:-1]:
            yield Finding(title, name, "a rung follows 'stop', after which there is no run: remove it.")
        if rule.escalate_after not in {None, "off"} and _all_hold(actions):
            yield Finding(
                title,
                name,
                "escalate_after has no effect: every rung holds the run, and its alert says nothing more.",
            )


def _all_hold(actions: Iterable[str]) -> bool:
    return set(actions) <= {*PAUSES, "stop"}
