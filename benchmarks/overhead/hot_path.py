"""What one `Monitor.step` costs the training thread when everything is on the host."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import trainswitch

CHUNK = 1000
_SCRAPE_ENDS_SECONDS = 0.02


def microseconds(home: Path, *, steps: int) -> list[float]:
    """Return microseconds a step, one value for each `CHUNK` of `steps`; the empty loop is subtracted.

    Between the chunks, untimed, a scrape has the aggregator take in what was recorded, and is given the time
    to end: it works while real steps compute, and a loop that does nothing but record would time its turns
    at Python's lock instead.
    """
    config = {
        "server": {"port": 0, "linger_seconds": 0, "targets_dir": home / "hot-path"},
        "control": {"folder": home / "control"},
    }
    found = []
    with trainswitch.attach(run="hot-path", config=config) as switch:
        step, chunk = switch.step, range(CHUNK)
        assert switch.url is not None
        for _ in range(steps // CHUNK):
            with urllib.request.urlopen(switch.url) as response:  # noqa: S310 - the endpoint just opened
                response.read()
            time.sleep(_SCRAPE_ENDS_SECONDS)
            start = time.perf_counter()
            for _ in chunk:
                pass
            empty = time.perf_counter() - start
            start = time.perf_counter()
            for _ in chunk:
                step(2.5, grad_norm=1.0, tokens=512)
            found.append((time.perf_counter() - start - empty) / CHUNK * 1e6)
    return found
