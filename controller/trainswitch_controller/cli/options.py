"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainswitch.config import HOME_VARIABLE, home_folder

CONTROLLER_VARIABLE = "TRAINSWITCH_CONTROLLER"
TOKEN_FILE_VARIABLE = "TRAINSWITCH_TOKEN_FILE"  # noqa: S105 - the name of a variable, not a token

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run.", show_default=False)]
OptionalRunArgument = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Name of the run; all runs without it.", show_default=False),
]
HomeOption = Annotated[
    Path | None,
    typer.Option(
        "--home",
        metavar="DIR",
        envvar=HOME_VARIABLE,
        help="Folder that trainers and the stack share.",
        show_default="./.trainswitch",
    ),
]
ControllerOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        metavar="URL",
        envvar=CONTROLLER_VARIABLE,
        help="Address of the controller.",
        show_default="the stack's, else http://127.0.0.1:9095",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar=TOKEN_FILE_VARIABLE,
        help="File with the operator token.",
        show_default="<home>/tokens/operator",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on standard output; text moves to standard error."),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many, newest first.")]


def resolve_home(home: Path | None) -> Path:
    """Return the home folder that was asked for, or the default, as an absolute path."""
    return home.absolute() if home is not None else home_folder()
