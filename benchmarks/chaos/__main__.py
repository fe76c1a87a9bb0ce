"""``python -m benchmarks.chaos``: what ``scripts/chaos`` starts."""

from __future__ import annotations

import sys

import typer

from benchmarks.chaos.command import run
from trainswitch.errors import TrainswitchError
from trainswitch_controller.cli.output import complain


def main() -> int:
    """Play the rounds and return the exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog="Example: scripts/chaos --rounds 200 --seed 7")(run)
    try:
        app(prog_name="scripts/chaos")
    except (TrainswitchError, TimeoutError) as error:
        complain(str(error))
        return 1
    return 0


if __name__ == "__main__":  # the fork server imports this module, too
    sys.exit(main())
