"""The version of the installed distribution."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """Return the version of trainswitch; ``0+unknown`` where it runs without having been installed."""
    try:
        return metadata.version("trainswitch")
    except metadata.PackageNotFoundError:
        return "0+unknown"
