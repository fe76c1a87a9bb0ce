"""``trainswitch policy``: check a policy file, and have explained what a policy would do about an alert."""

from __future__ import annotations

import typer

from trainswitch_controller.cli.policy import checking, explaining


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    policy = typer.Typer(
        help="Check a policy, and explain what it would do.", no_args_is_help=True, add_completion=False
    )
    for module in (checking, explaining):
        module.register(policy)
    app.add_typer(policy, name="policy")
