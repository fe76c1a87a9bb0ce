"""``trainswitch rules``: compile one's own rules, check and test rule files, and have an alert explained."""

from __future__ import annotations

import typer

from trainswitch_controller.cli.rules import checking, compiling, explaining, testing


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    rules = typer.Typer(
        help="Compile, check, test and explain rules.", no_args_is_help=True, add_completion=False
    )
    for module in (compiling, checking, testing, explaining):
        module.register(rules)
    app.add_typer(rules, name="rules")
