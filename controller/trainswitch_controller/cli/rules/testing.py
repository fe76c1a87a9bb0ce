"""``trainswitch rules test``: promtool's cases, the committed ones or those generated for one's own rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.errors import UsageProblem
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report
from trainswitch_controller.cli.progress import showing_progress
from trainswitch_controller.cli.rules.shared import program
from trainswitch_controller.cli.signals import ending_on_sigterm
from trainswitch_controller.rulebook import (
    CompiledRule,
    case_documents,
    compile_file,
    expand,
    is_rule_file,
    rule_document,
)
from trainswitch_controller.rulebook.document import read
from trainswitch_controller.rulebook.promtool import Verdict, run_cases
from trainswitch_controller.rulebook.text import yaml_text

_EPILOG = (
    "Examples: trainswitch rules test · trainswitch rules test my-rules.json · "
    "trainswitch rules test prometheus/rules/loss.yml"
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="test", epilog=_EPILOG)(run_all)


def run_all(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE",
            help="Your rule file (cases are generated), a rule file of Prometheus with cases in ../tests, "
            "or a file of cases; all committed cases without any.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the cases of rules: where they have to fire, and where they have to stay silent."""
    given = files or [assets_folder() / "prometheus" / "tests"]
    for path in given:
        if not path.exists():
            raise UsageProblem(f"{path} does not exist: name rule files, or files of cases.")
    report = Report(as_json=as_json)
    promtool = program("promtool")
    verdicts: list[Verdict] = []
    without: list[tuple[str, str]] = []
    with ending_on_sigterm(), showing_progress() as progress:
        paths = expand(given)
        for number, path in enumerate(paths):
            progress("files", number, len(paths))
            if is_rule_file(path):
                verdicts += _generated(promtool, compile_file(path), without)
            else:
                verdicts += [run_cases(promtool, cases) for cases in _cases_of(path)]
    for verdict in verdicts:
        state = "ok" if verdict.holds else "FAILED"
        report.say(f"{state:<7} {verdict.title} ({verdict.cases} cases)")
        for failure in verdict.failures:
            report.say(failure)
    for name, reason in without:
        report.say(f"no case {name}: {reason}")
    failed = sum(not verdict.holds for verdict in verdicts)
    report.say(f"{sum(verdict.cases for verdict in verdicts)} cases, {failed} of {len(verdicts)} failed.")
    report.result(
        {
            "results": [
                {"name": one.title, "cases": one.cases, "holds": one.holds, "failures": list(one.failures)}
                for one in verdicts
            ],
            "without_cases": [{"alert": name, "reason": reason} for name, reason in without],
        }
    )
    if failed:
        raise typer.Exit(1)


def _cases_of(path: Path) -> list[Path]:
    """Return the files of cases that belong to a rule file of Prometheus; the file itself if it is one."""
    if read(path).get("tests") is not None:
        return [path]
    found = sorted((path.absolute().parent.parent / "tests").glob(f"{path.stem}.*test.yml"))
    if not found:
        raise UsageProblem(
            f"{path} has no cases: they are looked for as ../tests/{path.stem}.test.yml beside its folder."
        )
    return found


def _generated(
    promtool: Path, compiled: list[CompiledRule], without: list[tuple[str, str]]
) -> Iterator[Verdict]:
    """Run the cases of each rule by itself: promtool evaluates all rules of a file for each case."""
    for one in compiled:
        title = f"{one.rule.name}: {one.rule.condition}"
        with TemporaryDirectory() as folder:
            (Path(folder) / "rules.yml").write_text(
                yaml_text(rule_document([one], "rules")), encoding="utf-8"
            )
            documents, missing = case_documents([one], "rules.yml")
            without += missing
            found = []
            for ending, document in documents.items():
                path = Path(folder) / ending
                path.write_text(yaml_text(document), encoding="utf-8")
                found.append(run_cases(promtool, path, title))
        if found:
            failures = tuple(failure for verdict in found for failure in verdict.failures)
            yield Verdict(title, sum(verdict.cases for verdict in found), failures)
