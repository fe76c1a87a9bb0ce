"""How far long work is, on standard error where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from trainswitch_controller.cli.output import console
from trainswitch_controller.replay.model import Progress


@contextmanager
def showing_progress() -> Iterator[Progress]:
    """Show a bar for each kind of work that is told of, and remove them at the end."""
    to = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=to, transient=True, disable=not to.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell
