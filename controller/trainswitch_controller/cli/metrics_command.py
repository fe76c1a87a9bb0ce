"""``trainswitch metrics``: every metric of the trainer's endpoint, and how many series a rank has."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from trainswitch.metrics.catalogue import CATALOGUE, Metric
from trainswitch_controller.cli import metrics_reference as reference
from trainswitch_controller.cli.errors import CliError, UsageProblem
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(epilog="Example: trainswitch metrics --json")(metrics)


def metrics(
    as_json: JsonOption = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference, docs/metrics.md.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FILE", help="End with 1 unless FILE is the current reference."),
    ] = None,
) -> None:
    """List every metric of a trainer's endpoint, and how many series a rank has."""
    if as_json + markdown + (check is not None) > 1:
        raise UsageProblem("--json, --markdown and --check exclude each other: give one of them.")
    if markdown:
        sys.stdout.write(reference.markdown())
    elif check is not None:
        _check(check)
    else:
        _show(Report(as_json=as_json))


def _check(path: Path) -> None:
    """Compare a committed reference with the current one."""
    try:
        found = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(
            f"cannot read {path}: {error}; write it with 'trainswitch metrics --markdown > {path}'."
        ) from error
    current = reference.markdown()
    if found != current:
        difference = difflib.unified_diff(
            found.splitlines(), current.splitlines(), str(path), "current", lineterm="", n=0
        )
        print("\n".join(difference))
        raise CliError(
            f"{path} is not current: write it with 'trainswitch metrics --markdown > {path}' and commit it."
        )


def _show(report: Report) -> None:
    found = reference.families()
    for family, members in found.items():
        report.say(f"{family.upper()}: {reference.total(members)} series in the example")
        report.table(
            ("METRIC", "TYPE", "UNIT", "LABELS", "SERIES", "MEANING"),
            (
                (
                    metric.name,
                    metric.kind,
                    reference.unit(metric) or None,
                    ", ".join(label for label, _ in metric.labels) or None,
                    reference.series(metric),
                    metric.help,
                )
                for metric in members
            ),
        )
        report.say("")
    report.say(reference.summary())
    report.result(
        {
            "families": [
                {
                    "name": family,
                    "series_in_example": reference.total(members),
                    "metrics": [_document(metric) for metric in members],
                }
                for family, members in found.items()
            ],
            "series_in_example": reference.total(CATALOGUE),
            "example": {label: count for label, (_, count) in reference.EXAMPLE.items()},
        }
    )


def _document(metric: Metric) -> dict[str, Any]:
    """Return one metric for programs; a label's values are null where only a run knows them."""
    count = reference.series(metric)
    return {
        "name": metric.name,
        "type": metric.kind,
        "unit": reference.unit(metric) or None,
        "labels": {label: list(values) or None for label, values in metric.labels},
        "buckets": list(metric.buckets),
        "help": metric.help,
        "series": {"fixed": count.fixed, "per": list(count.per), "in_example": count.example},
    }
