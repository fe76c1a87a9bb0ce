"""``python -m benchmarks.gauntlet``: what ``scripts/gauntlet`` starts."""

from __future__ import annotations

import signal
import sys

import typer

from benchmarks.gauntlet import command
from trainswitch.errors import TrainswitchError
from trainswitch_controller.cli.output import complain


def main() -> int:
    """Run the gauntlet and return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends as with Ctrl-C, so that nothing runs on
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog="Example: scripts/gauntlet --quick --keep runs")(command.run)
    try:
        app(prog_name="scripts/gauntlet")
    except TrainswitchError as error:
        complain(str(error))
        return 1
    return 0


sys.exit(main())
