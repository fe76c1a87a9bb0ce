"""``trainswitch rules explain``: what an alert watches, at which limits, and what follows."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import requests
import typer

from trainswitch_controller.cli.assets import default_policy
from trainswitch_controller.cli.errors import CliError, UsageProblem
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report
from trainswitch_controller.cli.rules.shared import committed, existing, files_of
from trainswitch_controller.policy import Policy
from trainswitch_controller.rulebook import (
    CompiledRule,
    Explanation,
    PrometheusRule,
    compile_file,
    explain,
    policy_entries,
    read_rule_file,
    rule_document,
)
from trainswitch_controller.rulebook.document import Place
from trainswitch_controller.rulebook.policy_file import check, merged
from trainswitch_controller.rulebook.runbook_page import runbook_page
from trainswitch_controller.rulebook.text import yaml_text

_EPILOG = (
    "Examples: trainswitch rules explain TrainLossUnstable · "
    "trainswitch rules explain CustomGradNormHigh --rules my-rules.json --prometheus http://127.0.0.1:9090"
)
_PATIENCE = 10.0


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="explain", epilog=_EPILOG)(explain_)


def explain_(
    alert: Annotated[str, typer.Argument(metavar="ALERT", help="Name of the alert.", show_default=False)],
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            "--rules",
            metavar="FILE",
            help="Rule files or folders besides the committed ones, of either kind; may be repeated.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", metavar="FILE", help="Policy that answers the alert.", show_default="conservative.yml"
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="Show what it says now.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain an alert: what it watches, at which limits, in which words, and what is done."""
    chosen = existing(policy, "policy") or default_policy()
    with TemporaryDirectory() as folder:
        known = committed()
        entries: dict[str, dict[str, Any]] = {}
        origins: dict[tuple[str, str | None], Place] = {}
        users, files = files_of(rules) if rules else ([], [])
        for path in users:
            compiled = compile_file(path)
            entries |= policy_entries(compiled)
            origins |= {(one.rule.name, one.rule.severity): one.rule.place for one in compiled}
            known += _as_file(compiled, path, Path(folder))
        known += [rule for path in files for rule in read_rule_file(path)]
        found = _explained(alert, known, check(merged(chosen, entries, "compiled")))
    # What was compiled only to be explained lies in a folder that is gone.
    found = [
        dataclasses.replace(one, rule=dataclasses.replace(one.rule, place=place)) if place else one
        for one in found
        for place in [origins.get((one.rule.name, one.rule.labels.get("severity")))]
    ]
    values = _now(prometheus, found[0].rule) if prometheus is not None else None
    report = Report(as_json=as_json)
    for number, one in enumerate(found):
        if number:
            report.say("")
        _show(report, one, first=number == 0)
    if values is not None:
        report.say("")
        report.say(f"NOW, at {prometheus}")
        if not values:
            report.say("  it does not hold for any run")
        for value in values:
            report.say(f"  {value['labels']}: {value['value']}")
    report.result({"explanations": [one.document() for one in found], "now": values})


def _explained(alert: str, known: list[PrometheusRule], policy: Policy) -> list[Explanation]:
    found = explain(alert, known, policy)
    if not found:
        names = sorted({rule.name for rule in known if rule.is_alert})
        near = difflib.get_close_matches(alert, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}."
        raise UsageProblem(f"there is no alert {alert[:80]!r}: {hint}")
    return found


def _as_file(compiled: list[CompiledRule], source: Path, folder: Path) -> list[PrometheusRule]:
    """Return a user's rules as they are compiled, with their runbooks beside them."""
    (folder / "rules").mkdir(exist_ok=True)
    (folder / "runbooks").mkdir(exist_ok=True)
    path = folder / "rules" / f"{source.stem}.yml"
    path.write_text(yaml_text(rule_document(compiled, source.stem)), encoding="utf-8")
    for one in compiled:
        (folder / "runbooks" / f"{one.rule.name}.md").write_text(runbook_page(one), encoding="utf-8")
    return read_rule_file(path)


def _show(report: Report, one: Explanation, *, first: bool) -> None:
    rule = one.rule
    report.say(f"{rule.title}: {rule.annotations.get('summary', '')}")
    interval = rule.interval or "evaluation_interval"
    report.say(f"  {rule.place}, group {rule.group}, evaluated every {interval}")
    lasting = [f"for {rule.wait}" if rule.wait else "", f"keeps firing for {rule.keep}" if rule.keep else ""]
    labels = ", ".join(f"{name}={value}" for name, value in rule.labels.items())
    report.say("  " + ", ".join(part for part in (f"labels {labels}", *lasting) if part))
    if first and one.meaning:
        _block(report, "MEANING", one.meaning)
    if one.limits:
        _block(report, "LIMITS", "\n".join(one.limits))
    _block(report, "WHAT IS DONE", " → ".join(one.ladder) + " → pause" if one.ladder else "people are told")
    _block(report, "EXPRESSION", rule.expr.strip())
    if not first:
        return
    if one.thresholds:
        _block(report, "THRESHOLDS OF ITS FILE", one.thresholds)
    for record in one.records:
        labels = ", ".join(f"{name}={value}" for name, value in record.labels.items())
        _block(report, f"RECORDED: {record.name}" + (f"{{{labels}}}" if labels else ""), record.expr.strip())
    if one.metrics:
        _block(report, "METRICS", "\n".join(f"{name}: {text}" for name, text in one.metrics.items()))


def _block(report: Report, title: str, text: str) -> None:
    report.say("")
    report.say(title)
    for line in text.splitlines():
        report.say(f"  {line}")


def _now(url: str, rule: PrometheusRule) -> list[dict[str, Any]]:
    """Return the series for which the expression holds now.

    Raises:
        CliError: Prometheus does not answer, or not with a result.
    """
    try:
        answer = requests.get(
            f"{url.rstrip('/')}/api/v1/query", params={"query": rule.expr}, timeout=_PATIENCE
        )
        body = answer.json()
        result = body["data"]["result"]
    except (requests.RequestException, ValueError, KeyError, TypeError) as error:
        raise CliError(f"Prometheus at {url} gives no answer to the rule's expression: {error}.") from None
    return [{"labels": series["metric"], "value": series["value"][1]} for series in result]
