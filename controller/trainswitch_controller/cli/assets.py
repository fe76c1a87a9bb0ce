"""Where the committed rules, configurations, dashboards and policies lie."""

from __future__ import annotations

from pathlib import Path

from trainswitch_controller.cli.errors import StackError


def assets_folder() -> Path:
    """Return the folder that holds ``prometheus/``, ``alertmanager/``, ``grafana/`` and ``policies/``.

    An installed wheel carries them in its package; a checkout has them at its root.

    Raises:
        StackError: neither is there.
    """
    here = Path(__file__).resolve()
    packaged, checkout = here.parents[1] / "assets", here.parents[3]
    for folder in (packaged, checkout):
        if (folder / "prometheus" / "prometheus.yml").is_file():
            return folder
    raise StackError(
        f"the rules and configurations are not in {packaged} or {checkout}: install trainswitch again."
    )


def runbooks_folder() -> Path:
    """Return the folder that holds a page for each alert."""
    return assets_folder() / "docs" / "runbooks"


def default_policy() -> Path:
    """Return the path of the policy that holds where none was asked for."""
    return assets_folder() / "policies" / "conservative.yml"
