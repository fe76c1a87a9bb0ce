"""What the command prints: text for people, and with ``--json`` one object for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDTH_OF_A_PIPE = 240
"""Columns where there is no terminal, so that nothing is cut for a reader such as grep."""


class Report:
    """Prints a command's result.

    Text goes to standard output. With `as_json` it goes to standard error, and standard output holds one
    line: the JSON object.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.console = console(stderr=as_json)

    def say(self, sentence: str) -> None:
        """Print one line of text; square brackets in it are no markup."""
        self.console.print(Text(sentence), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a table; None shows as a dash."""
        table = Table(*columns, box=None, pad_edge=False, header_style="bold")
        for row in rows:
            table.add_row(*(Text("-" if cell is None else str(cell)) for cell in row))
        self.console.print(table)

    def result(self, document: dict[str, Any]) -> None:
        """Print the JSON object, where one was asked for."""
        if self._as_json:
            print(json.dumps(document, allow_nan=False))


def console(*, stderr: bool) -> Console:
    """Return a console on one of the standard streams as they are now."""
    plain = Console(stderr=stderr, highlight=False)
    return plain if plain.is_terminal else Console(stderr=stderr, highlight=False, width=_WIDTH_OF_A_PIPE)


def complain(sentence: str) -> None:
    """Print an error or a warning on standard error."""
    console(stderr=True).print(Text(f"trainswitch: {sentence}"), soft_wrap=True)


def ago(timestamp: float | None) -> str | None:
    """Return how long ago a Unix time was, such as ``12 s ago``; None for None."""
    if timestamp is None:
        return None
    seconds = max(0.0, time.time() - timestamp)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
