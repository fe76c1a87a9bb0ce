"""Finding Prometheus, Alertmanager and Grafana, whatever the distribution calls them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainswitch_controller.cli.errors import MissingBinary
from trainswitch_controller.cli.stack.record import ServiceName

_NAMES: dict[ServiceName, tuple[str, ...]] = {
    "prometheus": ("prometheus",),
    "alertmanager": ("alertmanager", "prometheus-alertmanager"),
    "grafana": ("grafana", "grafana-server"),
}
_PACKAGES: dict[ServiceName, str] = {"prometheus": "prometheus", "alertmanager": "prometheus-alertmanager"}
"""Names of the Debian and Ubuntu packages of what the stack cannot do without."""
EXTRA_FOLDERS: dict[ServiceName, tuple[str, ...]] = {
    "prometheus": ("/usr/sbin", "/usr/local/bin"),
    "alertmanager": ("/usr/sbin", "/usr/local/bin"),
    # Its package puts wrappers with settings of their own into /usr/sbin and the binaries here.
    "grafana": ("/usr/share/grafana/bin", "/usr/sbin", "/usr/local/bin"),
}
"""Where packages put what need not be on a user's PATH."""


def find_binaries(bin_dirs: Sequence[Path] = ()) -> dict[ServiceName, Path]:
    """Return the absolute path of each program that is installed; Grafana may be missing.

    Looked at are `bin_dirs`, then PATH, then where the distributions' packages put them.

    Raises:
        MissingBinary: Prometheus or Alertmanager is missing; the message says how to install it.
    """
    found = {name: path for name in _NAMES if (path := _find(name, bin_dirs)) is not None}
    missing = [name for name in _PACKAGES if name not in found]
    if missing:
        raise MissingBinary(_how_to_install(missing))
    return found


def find_prometheus(bin_dirs: Sequence[Path] = ()) -> Path:
    """Return the absolute path of Prometheus, for what needs nothing else.

    Raises:
        MissingBinary: it is not installed.
    """
    found = _find("prometheus", bin_dirs)
    if found is None:
        raise MissingBinary(_how_to_install(["prometheus"]))
    return found


def binary_version(binary: Path) -> str:
    """Return the version that a program reports, or ``unknown``."""
    try:
        answer = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    match = re.search(r"version:? (\S+)", answer.stdout + answer.stderr, re.IGNORECASE)
    return match.group(1).strip(",") if match else "unknown"


def _find(name: ServiceName, bin_dirs: Sequence[Path]) -> Path | None:
    for folders in ([str(folder) for folder in bin_dirs], None, EXTRA_FOLDERS[name]):
        if folders is not None and not folders:
            continue
        for binary in _NAMES[name]:
            path = shutil.which(binary, path=None if folders is None else ":".join(folders))
            if path is not None:
                return Path(path).absolute()
    return None


def _how_to_install(missing: Sequence[ServiceName]) -> str:
    return (
        f"{_spoken(missing)} not installed: not in --bin-dir, on PATH or in "
        f"{' or '.join(EXTRA_FOLDERS['prometheus'])}; run 'sudo apt-get install "
        f"{' '.join(_PACKAGES[name] for name in missing)}', or name the binaries' folder with --bin-dir."
    )


def _spoken(missing: Sequence[ServiceName]) -> str:
    names = [f"{name.capitalize()} ({' or '.join(_NAMES[name])})" for name in missing]
    return " and ".join(names) + (" is" if len(names) == 1 else " are")
