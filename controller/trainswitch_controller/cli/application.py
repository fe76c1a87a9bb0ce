"""The ``trainswitch`` command put together from its subcommands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from trainswitch.errors import TrainswitchError
from trainswitch.version import version
from trainswitch_controller.cli import (
    actions,
    demo,
    incidents,
    metrics_command,
    openapi_command,
    policy,
    queries,
    replay_command,
    rules,
    serve,
    stack_commands,
    tune_command,
)
from trainswitch_controller.cli.errors import exit_code_of
from trainswitch_controller.cli.output import complain

_COMMANDS = (
    demo,
    stack_commands,
    queries,
    incidents,
    actions,
    serve,
    replay_command,
    tune_command,
    rules,
    policy,
    metrics_command,
    openapi_command,
)
"""Modules with ``register(app)``, in the order in which the help lists their commands."""


def build() -> typer.Typer:
    """Return the application with every subcommand."""
    app = typer.Typer(
        help="Watch training runs, and act on them.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for module in _COMMANDS:
        module.register(app)
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors become one sentence on standard error."""
    try:
        build()(args=arguments, prog_name="trainswitch")
    except TrainswitchError as error:
        complain(str(error))
        return exit_code_of(error)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    return 0


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trainswitch {version()}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Hold the options that stand before a subcommand."""
