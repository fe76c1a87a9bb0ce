"""``trainswitch openapi``: the controller's API as an OpenAPI document."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import typer

from trainswitch_controller.cli.assets import default_policy
from trainswitch_controller.cli.tokens import alertmanager_token_path, ensure_token, operator_token_path


def register(app: typer.Typer) -> None:
    """Add the command of this module to `app`."""
    app.command(epilog="Example: trainswitch openapi > openapi.json")(openapi)


def openapi() -> None:
    """Print the controller's API as an OpenAPI document; it asks nobody."""
    # Here and not above: the web framework and the database would slow every other command down.
    from trainswitch_controller.app import create_app
    from trainswitch_controller.openapi import describe
    from trainswitch_controller.settings import parse_settings

    with tempfile.TemporaryDirectory(prefix="trainswitch-openapi-") as name:
        home = Path(name)  # nothing in it is ever served
        settings = parse_settings(
            {
                "control_dir": home,
                "journal_url": f"sqlite:///{home / 'journal.db'}",
                "policy": default_policy(),
                "alertmanager_token_file": ensure_token(alertmanager_token_path(home)),
                "operator_token_file": ensure_token(operator_token_path(home)),
            }
        )
        typer.echo(json.dumps(describe(create_app(settings)), indent=1))
