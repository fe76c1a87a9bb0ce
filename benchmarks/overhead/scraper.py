"""Scrapes whatever is registered: ``python -m benchmarks.overhead.scraper TARGETS_DIR INTERVAL_SECONDS``.

A process of its own, as Prometheus is, that reads the same file_sd folder. It prints a line of JSON for each
scrape, begin and end in Unix seconds, and ends when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def scraping(targets: Path, interval: float) -> Iterator[list[tuple[float, float]]]:
    """Run the scraper; yields the list to which begin and end of each scrape are added."""
    windows: list[tuple[float, float]] = []
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.overhead.scraper", str(targets), str(interval)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_REPOSITORY,
    ) as process:
        lines, stdin = process.stdout, process.stdin
        assert lines is not None
        assert stdin is not None
        reader = threading.Thread(target=lambda: windows.extend(tuple(json.loads(line)) for line in lines))
        reader.start()
        try:
            yield windows
        finally:
            stdin.close()
            reader.join()


def addresses(folder: Path) -> list[str]:
    """Return the targets that are registered now."""
    found: list[str] = []
    for path in folder.glob("*.json"):
        try:
            groups = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # being replaced
        found.extend(address for group in groups for address in group["targets"])
    return found


def main() -> None:
    """Scrape until standard input ends."""
    folder, interval = Path(sys.argv[1]), float(sys.argv[2])
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    connections: dict[str, HTTPConnection] = {}  # kept from scrape to scrape, as Prometheus does
    while not ended.wait(interval):
        for address in addresses(folder):
            began = time.time()
            connection = connections.setdefault(address, HTTPConnection(address, timeout=5.0))
            try:
                connection.request("GET", "/metrics")
                connection.getresponse().read()
            except (OSError, HTTPException):
                connection.close()  # withdrawn since, or it did not wait; the next request opens it again
                continue
            print(json.dumps([began, time.time()]), flush=True)


if __name__ == "__main__":
    main()
