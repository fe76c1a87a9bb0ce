"""``trainswitch rules check``: promtool's judgement of rule files, and what it does not see."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report
from trainswitch_controller.cli.rules.shared import FilesArgument, committed, existing, files_of, program
from trainswitch_controller.errors import RuleFileError
from trainswitch_controller.policy import WATCHDOG, load_policy
from trainswitch_controller.rulebook import (
    Finding,
    PrometheusRule,
    compile_file,
    lint,
    read_rule_file,
)
from trainswitch_controller.rulebook.promtool import check_rules, receivers

_EPILOG = (
    "Examples: trainswitch rules check · trainswitch rules check my-rules.json · "
    "trainswitch rules check --policy policies/conservative.yml --alertmanager alertmanager/alertmanager.yml"
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog=_EPILOG)(check)


def check(
    files: FilesArgument = None,
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Say which alerts with an action it does not answer, and which entries answer none; may be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    alertmanager: Annotated[
        Path | None,
        typer.Option(
            "--alertmanager",
            metavar="FILE",
            help="Say which alerts its routes do not deliver to the controller, or to nobody.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check rule files: what promtool refuses, rules that could never fire, alerts nobody could act on."""
    policies = {str(path): load_policy(path)[0] for path in policy or () if existing(path, "policy")}
    existing(alertmanager, "configuration of Alertmanager")
    users, prometheus = files_of(files)
    beside = committed()
    taken = {rule.name for rule in beside if rule.is_alert}
    findings: list[Finding] = []
    rules: list[PrometheusRule] = []
    compiled = 0
    for path in users:
        try:
            compiled += len(compile_file(path, taken=taken))
        except RuleFileError as error:
            findings += [_of_fault(fault) for fault in error.faults]
    for path in prometheus:
        try:
            rules += read_rule_file(path)
            findings += [
                Finding(str(path), "promtool", said) for said in check_rules(program("promtool"), path)
            ]
        except RuleFileError as error:
            findings += [_of_fault(fault) for fault in error.faults]
    findings += lint(rules, others=beside, policies=policies)
    if alertmanager is not None:
        findings += _unrouted(rules, alertmanager)
    alerts = compiled + sum(rule.is_alert for rule in rules)
    records = sum(not rule.is_alert for rule in rules)
    _show(findings, [*users, *prometheus], alerts, records, as_json=as_json)


def _of_fault(fault: str) -> Finding:
    """Return a fault, which begins with its place, as a finding."""
    place, _, message = fault.partition(": ")
    return Finding(place, "rule file", message)


def _unrouted(rules: Iterable[PrometheusRule], configuration: Path) -> Iterable[Finding]:
    amtool = program("amtool")
    for rule in rules:
        if not rule.is_alert or any("{{" in value for value in rule.labels.values()):
            continue
        labels = {"alertname": rule.name, "run": "example", **rule.labels}
        try:
            reached = receivers(amtool, configuration, labels)
        except ValueError as error:
            yield Finding(str(configuration), "amtool", str(error))
            return
        acts = rule.labels.get("severity") == "critical" and "action" in rule.labels
        if (acts or rule.name == WATCHDOG) and "controller" not in reached:
            yield Finding(
                str(rule.place),
                rule.title,
                f"its alerts go to {', '.join(reached)} and not to the controller.",
            )
        if reached in ([], [""]):
            yield Finding(str(rule.place), rule.title, "no route delivers its alerts.")


def _show(findings: list[Finding], files: list[Path], alerts: int, records: int, *, as_json: bool) -> None:
    report = Report(as_json=as_json)
    for finding in findings:
        report.say(str(finding))
    report.say(
        f"Files: {len(files)}, alerts: {alerts}, records: {records}, findings: {len(findings) or 'none'}."
    )
    report.result(
        {
            "files": [str(path) for path in files],
            "alerts": alerts,
            "records": records,
            "findings": [vars(finding) for finding in findings],
        }
    )
    if findings:
        raise typer.Exit(1)
