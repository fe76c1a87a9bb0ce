"""Writing the configurations that the stack's processes read."""

from __future__ import annotations

from pathlib import Path

from trainswitch.files import write_atomically
from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.stack.record import stack_folder
from trainswitch_controller.cli.stack.render import (
    Addresses,
    render_alertmanager,
    render_links,
    render_prometheus,
)
from trainswitch_controller.cli.tokens import alertmanager_token_path


def write_configurations(home: Path, addresses: Addresses) -> None:
    """Write ``prometheus.yml``, ``alertmanager.yml`` and its ``links.tmpl`` of the stack in `home`.

    Raises:
        RenderError: a committed configuration cannot be turned into a local one.
        StackError: a file cannot be read or written.
    """
    assets = assets_folder()
    prometheus = assets / "prometheus" / "prometheus.yml"
    alertmanager = assets / "alertmanager" / "alertmanager.yml"
    try:
        rendered = {
            prometheus.name: render_prometheus(
                prometheus.read_text(encoding="utf-8"),
                source=prometheus,
                targets=home / "targets",
                addresses=addresses,
            ),
            alertmanager.name: render_alertmanager(
                alertmanager.read_text(encoding="utf-8"),
                source=alertmanager,
                token_file=alertmanager_token_path(home),
                links=stack_folder(home) / "links.tmpl",
                addresses=addresses,
            ),
            "links.tmpl": render_links(addresses),
        }
        for name, text in rendered.items():
            write_atomically(stack_folder(home) / name, text.encode())
    except OSError as error:
        raise StackError(
            f"cannot configure the stack: {error.strerror or error}: {error.filename}."
        ) from error
