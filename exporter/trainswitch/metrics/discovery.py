"""Registration of a rank's scrape endpoint in a folder that Prometheus reads by file_sd."""

from __future__ import annotations

import json
from pathlib import Path

from trainswitch.files import write_atomically
from trainswitch.intervention.commands import check_run_name


class TargetRegistration:
    """One rank's file in the targets folder: written at start, emptied at the end.

    Emptied, not removed: Prometheus keeps the targets of a file that disappears.
    """

    def __init__(self, folder: Path, *, run: str, rank: int, node: str) -> None:
        """Name the file ``<folder>/<run>.<rank>.json``; nothing is written yet."""
        self.path = folder / f"{check_run_name(run)}.{rank}.json"
        self._labels = {"run": run, "rank": str(rank), "node": node}
        self._content = b""

    def register(self, host: str, port: int, scheme: str) -> None:
        """Tell Prometheus to scrape ``scheme://host:port/metrics``.

        Raises:
            OSError: the folder cannot be created or written.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        groups = [{"targets": [address], "labels": {**self._labels, "__scheme__": scheme}}]
        self._content = json.dumps(groups, indent=1).encode()
        write_atomically(self.path, self._content)

    def withdraw(self) -> None:
        """Tell Prometheus that there is nothing to scrape any more, unless a later session has registered.

        Raises:
            OSError: the file cannot be read or written.
        """
        # A file that was removed is written, too: Prometheus keeps the targets of a file that disappears.
        if not self.path.exists() or self.path.read_bytes() == self._content:
            write_atomically(self.path, b"[]")
