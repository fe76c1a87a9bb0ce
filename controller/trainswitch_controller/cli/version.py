"""The version of the installed distribution."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def package_version() -> str:
    """Return the version of trainswitch."""
    try:
        return version("trainswitch")
    except PackageNotFoundError:
        return "unknown (not installed)"
