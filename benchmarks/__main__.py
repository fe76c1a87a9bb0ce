"""``python -m benchmarks NAME``: what ``scripts/bench`` starts."""

from __future__ import annotations

import sys

import typer

from benchmarks.latency import command as latency
from benchmarks.overhead import command as overhead
from trainswitch.errors import TrainswitchError
from trainswitch_controller.cli.output import complain


def main() -> int:
    """Run one benchmark and return its exit code."""
    app = typer.Typer(
        name="bench",
        help="Measure trainswitch against its bars.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(lambda: None)
    app.command("latency", epilog="Example: scripts/bench latency --json")(latency.run)
    app.command("overhead", epilog="Example: scripts/bench overhead --json")(overhead.run)
    try:
        app(prog_name="scripts/bench")
    except TrainswitchError as error:
        complain(str(error))
        return 1
    return 0


sys.exit(main())
