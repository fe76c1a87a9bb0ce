"""The ``trainswitch`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainswitch_controller.cli.errors import EXIT_USAGE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: what follows ``trainswitch``; the process's own arguments where None.
    """
    try:
        # Here and not above: only the extra 'controller' brings what the command line is built with.
        from trainswitch_controller.cli.application import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in {"", "trainswitch", "trainswitch_controller"}:
            raise
        sys.stderr.write(
            f"trainswitch: the command line needs {package!r}, which is not installed: "
            "run pip install 'trainswitch[controller]'.\n"
        )
        return EXIT_USAGE
    return run(arguments)
