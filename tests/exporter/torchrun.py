"""Runs of several ranks under the real torchrun, seen from outside: by their targets and their endpoints."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Seen = TypeVar("Seen")

RANK = Path(__file__).with_name("processes") / "rank.py"
LONGEST_SECONDS = 60.0


@contextlib.contextmanager
def torchrun(ranks: int, mode: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``processes/rank.py`` on `ranks` ranks; whatever still runs at the end is stopped."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    with (home / "torchrun.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--nproc-per-node={ranks}", str(RANK), mode, str(home)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TRAINSWITCH_HOME": str(home), "OMP_NUM_THREADS": "1"},
        )
    try:
        yield process
    finally:
        process.terminate()  # torchrun takes its ranks along
        try:
            process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def eventually(
    what: str, look: Callable[[], Seen | None], process: subprocess.Popen[bytes], home: Path
) -> Seen:
    """Return what `look` returns once that is not None; fail, with the ranks' output, if it never is."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        seen = look()
        if seen is not None:
            return seen
        time.sleep(0.1)
    log = (home / "torchrun.log").read_text(errors="replace")
    raise AssertionError(f"never seen: {what}; torchrun: {process.poll()}\n{log[-4000:]}")


def targets(home: Path) -> dict[int, str]:
    """Return rank → address of what is registered with Prometheus."""
    found: dict[int, str] = {}
    for path in (home / "targets").glob("*.json"):
        groups: list[dict[str, Any]] = json.loads(path.read_text())
        for group in groups:
            found[int(group["labels"]["rank"])] = group["targets"][0]
    return found


def scrape(address: str) -> bytes:
    """Return the samples of one rank."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10.0) as response:
        text: bytes = response.read()
    return text
