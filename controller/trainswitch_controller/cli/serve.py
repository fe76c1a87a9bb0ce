"""``trainswitch serve``: the controller in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainswitch_controller.cli.assets import default_policy, runbooks_folder
from trainswitch_controller.cli.errors import CliError
from trainswitch_controller.cli.options import HomeOption, resolve_home
from trainswitch_controller.cli.tokens import alertmanager_token_path, ensure_token, operator_token_path


def register(app: typer.Typer) -> None:
    """Add the command of this module to `app`."""
    app.command(epilog="Example: trainswitch serve --port 9095 --policy policies/autonomous.yml")(serve)


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = 9095,
    control_dir: Annotated[
        Path | None,
        typer.Option("--control-dir", metavar="DIR", help="Control folder.", show_default="<home>/control"),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            metavar="URL",
            help="SQLAlchemy URL of the journal's database.",
            show_default="journal.db beside the control folder",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="FILE", help="Policy.", show_default="conservative.yml"),
    ] = None,
    alertmanager_token_file: Annotated[
        Path | None,
        typer.Option(
            "--alertmanager-token-file",
            metavar="FILE",
            help="Token that Alertmanager sends.",
            show_default="<home>/tokens/alertmanager, made if missing",
        ),
    ] = None,
    operator_token_file: Annotated[
        Path | None,
        typer.Option(
            "--operator-token-file",
            metavar="FILE",
            help="Token that operators send.",
            show_default="<home>/tokens/operator, made if missing",
        ),
    ] = None,
    viewer_token_file: Annotated[
        Path | None,
        typer.Option("--viewer-token-file", metavar="FILE", help="Token of people who may only look."),
    ] = None,
    relays: Annotated[
        Path | None,
        typer.Option("--relays", metavar="FILE", help="Relays to SMS gateways, chat robots and the like."),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="Where the onsets of alerts are looked for."),
    ] = None,
    onset_signals: Annotated[
        Path | None,
        typer.Option("--onset-signals", metavar="FILE", help="Signals of an onset.", show_default="shipped"),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain (PEM).")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Private key (PEM).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", metavar="FILE", help="Authorities of clients' certificates (PEM)."),
    ] = None,
    signing_key_file: Annotated[
        Path | None,
        typer.Option("--signing-key-file", metavar="FILE", help="Keys that sign the control files."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Run the controller in the foreground, until it is told to end."""
    # Here and not above: the web framework and the database would slow every other command down.
    from trainswitch_controller.serving import serve as serve_until_told
    from trainswitch_controller.settings import parse_settings

    folder = resolve_home(home)
    control = (control_dir or folder / "control").absolute()
    try:
        control.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(
            f"cannot make the control folder {control}: {error.strerror or error}; "
            "name another with --control-dir."
        ) from error
    settings = parse_settings(
        {
            "control_dir": control,
            "journal_url": journal or f"sqlite:///{control.parent / 'journal.db'}",
            "policy": policy or default_policy(),
            "alertmanager_token_file": alertmanager_token_file
            or ensure_token(alertmanager_token_path(folder)),
            "operator_token_file": operator_token_file or ensure_token(operator_token_path(folder)),
            "viewer_token_file": viewer_token_file,
            "relays": relays,
            "runbooks_dir": runbooks_folder(),
            "prometheus_url": prometheus,
            "onset_signals": onset_signals,
            "host": host,
            "port": port,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "tls_client_ca": tls_client_ca,
            "signing_key_file": signing_key_file,
        }
    )
    raise typer.Exit(serve_until_told(settings))
