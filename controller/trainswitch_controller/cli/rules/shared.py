"""What the subcommands of ``trainswitch rules`` share: options, programs, and files of both kinds."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.errors import CliError, MissingBinary, UsageProblem
from trainswitch_controller.rulebook import PrometheusRule, expand, is_rule_file, read_rule_file

_FOLDERS = ("/usr/sbin", "/usr/local/bin")
_PACKAGES = {"promtool": "prometheus", "amtool": "prometheus-alertmanager"}

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        help="Rule files, or folders of some; the committed ones without any.",
        show_default=False,
    ),
]


class RulesFound(CliError):
    """Something is wrong with the rules; each line of the message is one finding."""


def program(name: str) -> Path:
    """Return the path of promtool or amtool.

    Raises:
        MissingBinary: it is not installed.
    """
    for folders in (None, *_FOLDERS):
        found = shutil.which(name, path=folders)
        if found is not None:
            return Path(found).absolute()
    raise MissingBinary(
        f"{name} is not on PATH or in {' or '.join(_FOLDERS)}: run 'sudo apt-get install {_PACKAGES[name]}'."
    )


def committed_rules() -> Path:
    """Return the folder of the committed rule files."""
    return assets_folder() / "prometheus" / "rules"


def existing(path: Path | None, what: str) -> Path | None:
    """Return `path`, if it is a file or none was given.

    Raises:
        UsageProblem: there is no such file.
    """
    if path is not None and not path.is_file():
        raise UsageProblem(f"{what} {path} is no file: name one that exists.")
    return path


def files_of(paths: Iterable[Path] | None) -> tuple[list[Path], list[Path]]:
    """Return the user's rule files and those of Prometheus among `paths`; the committed ones without any.

    Raises:
        UsageProblem: a path does not exist.
        RuleFileError: a file cannot be read.
    """
    given = list(paths or [committed_rules()])
    for path in given:
        if not path.exists():
            raise UsageProblem(f"{path} does not exist: name rule files, or folders of some.")
    users: list[Path] = []
    prometheus: list[Path] = []
    for path in expand(given):
        (users if is_rule_file(path) else prometheus).append(path)
    return users, prometheus


def committed() -> list[PrometheusRule]:
    """Return all committed rules."""
    return [rule for path in expand([committed_rules()]) for rule in read_rule_file(path)]
