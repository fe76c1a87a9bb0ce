"""``python -m benchmarks NAME``: what ``scripts/bench`` starts."""

from __future__ import annotations

import sys

import typer

from benchmarks.early_warning import command as early_warning
from benchmarks.latency import command as latency
from benchmarks.overhead import command as overhead
from benchmarks.scale import command as scale
from benchmarks.storm import command as storm
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
    app.command("early-warning", epilog="Example: scripts/bench early-warning --keep runs")(early_warning.run)
    app.command("latency", epilog="Example: scripts/bench latency --json")(latency.run)
    app.command("overhead", epilog="Example: scripts/bench overhead --json")(overhead.run)
    app.command("scale", epilog="Example: scripts/bench scale --ranks 64,256 --fill 0")(scale.run)
    app.command("storm", epilog="Example: scripts/bench storm --json")(storm.run)
    try:
        app(prog_name="scripts/bench")
    except TrainswitchError as error:
        complain(str(error))
        return 1
    return 0


sys.exit(main())
