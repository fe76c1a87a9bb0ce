"""Options of the commands that play recorded runs through the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RulesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--rules",
        metavar="PATH",
        exists=True,
        help="Prometheus rule file, or a folder of some, instead of the committed ones; may be repeated.",
        show_default=False,
    ),
]
PaceOption = Annotated[
    float, typer.Option("--pace", metavar="SECONDS", min=0.001, max=86400.0, help="What each row takes.")
]
ScrapeOption = Annotated[
    float, typer.Option("--scrape", metavar="SECONDS", min=0.1, max=3600.0, help="Time between two scrapes.")
]
JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Runs that are played at once, and queries.",
        show_default="as many as CPUs",
    ),
]
BinDirOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--bin-dir",
        metavar="DIR",
        help="Where to look for Prometheus before PATH; may be repeated.",
        show_default=False,
    ),
]
