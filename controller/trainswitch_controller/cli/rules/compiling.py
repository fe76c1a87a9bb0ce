"""``trainswitch rules compile``: from a user's rule file to Prometheus' rules and a policy."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from trainswitch.files import write_atomically
from trainswitch_controller.cli.assets import default_policy
from trainswitch_controller.cli.errors import CliError
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain
from trainswitch_controller.cli.rules.shared import RulesFound, committed, existing, program
from trainswitch_controller.rulebook import (
    CompiledRule,
    case_documents,
    compile_file,
    policy_entries,
    rule_document,
)
from trainswitch_controller.rulebook.policy_file import merged
from trainswitch_controller.rulebook.promtool import check_rules
from trainswitch_controller.rulebook.runbook_page import runbook_page
from trainswitch_controller.rulebook.text import yaml_text

_EPILOG = (
    "Examples: trainswitch rules compile my-rules.json · "
    "trainswitch rules compile my-rules.yml --output compiled --policy policies/conservative.yml"
)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="compile", epilog=_EPILOG)(compile_)


def compile_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Rule file, JSON or YAML.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Write rules/, tests/, runbooks/ and policy.yml there instead of printing the rules.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Policy that the entries are added to.",
            show_default="conservative.yml",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn a rule file into checked Prometheus rules and entries of the policy."""
    existing(file, "rule file")
    existing(policy, "policy")
    taken = {rule.name for rule in committed() if rule.is_alert}
    compiled = compile_file(file, taken=taken)
    stem = file.stem
    entries = policy_entries(compiled)
    comment = (
        f"Compiled from {file.name} by `trainswitch rules compile`: change that file, not these entries."
    )
    texts = _texts(compiled, stem, file.name)
    texts["policy.yml"] = merged(policy or default_policy(), entries, comment)
    _check(texts[f"rules/{stem}.yml"])
    report = Report(as_json=as_json)
    if output is None:
        if not as_json:
            print(texts[f"rules/{stem}.yml"], end="")
            print("---\n" + yaml_text({"alerts": entries}, "Entries of the policy."), end="")
    else:
        _write(output, texts)
        report.table(
            ("ALERT", "SEVERITY", "ACTION", "CONDITION"),
            ((one.rule.name, one.rule.severity, one.rule.action, one.rule.condition) for one in compiled),
        )
        report.say(f"Written to {output}: {', '.join(texts)}.")
    report.result(
        {
            "alerts": [_document(one) for one in compiled],
            "rules": rule_document(compiled, stem),
            "policy_entries": entries,
            "files": sorted(str(output / name) for name in texts) if output is not None else [],
        }
    )


def _texts(compiled: list[CompiledRule], stem: str, source: str) -> dict[str, str]:
    """Return the files to write, by their names in the output folder."""
    said = "\n".join(f"  {one.rule.name}: {one.rule.written}" for one in compiled)
    header = f"Compiled from {source} by `trainswitch rules compile`: change that file, not this one.\n{said}"
    texts = {f"rules/{stem}.yml": yaml_text(rule_document(compiled, stem), header)}
    documents, without = case_documents(compiled, f"../rules/{stem}.yml")
    for ending, document in documents.items():
        texts[f"tests/{stem}.{ending}"] = yaml_text(document, f"Generated with rules/{stem}.yml.")
    for name, reason in without:
        complain(f"there is no case for {name}: {reason}.")
    for one in compiled:
        texts[f"runbooks/{one.rule.name}.md"] = runbook_page(one)
    return texts


def _check(rules: str) -> None:
    """Refuse what promtool refuses: nobody should find out only when Prometheus does not start."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yml"
        path.write_text(rules, encoding="utf-8")
        problems = check_rules(program("promtool"), path)
    if problems:
        raise RulesFound(
            "the compiled rules are not valid, which is a bug of the compiler: " + " ".join(problems)
        )


def _write(folder: Path, texts: dict[str, str]) -> None:
    try:
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
    except OSError as error:
        raise CliError(f"cannot write to {folder}: {error.strerror or error}.") from error


def _document(one: CompiledRule) -> dict[str, object]:
    rule = one.rule
    return {
        "alert": rule.name,
        "severity": rule.severity,
        "action": rule.action,
        "params": rule.params,
        "condition": rule.condition,
        "written": rule.written,
        "line": rule.place.line,
        "for_seconds": one.waits,
        "expr": one.expr,
    }
