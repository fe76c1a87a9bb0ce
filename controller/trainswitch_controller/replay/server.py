"""A Prometheus of the replay's own: it scrapes nothing, holds what is written to it, and answers queries."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.timeline import LONGEST_S

_START_SECONDS = 30.0
_ATTEMPTS = 3
_CONFIG = "global: {scrape_interval: 1m}\n"
_FOREVER = f"{LONGEST_S:.0f}s"
"""No replay is longer, so its samples all stay in the head block, which takes them in any order of series."""


@contextlib.contextmanager
def running_prometheus(binary: Path) -> Iterator[str]:
    """Run Prometheus on a free port of the loopback until the end of the block, and yield its address.

    Its data lie in a temporary folder, which goes with it.

    Raises:
        ReplayError: it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="trainswitch-replay-") as name:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(_CONFIG, encoding="utf-8")
        process, url = _start(binary, folder)
        try:
            yield url
        finally:
            process.kill()  # nothing that it would still write is wanted
            process.wait()


def _start(binary: Path, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    for _ in range(_ATTEMPTS):  # another program may take the port before Prometheus does
        port = _free_port()
        url = f"http://127.0.0.1:{port}"
        with (folder / "log").open("wb") as log:
            try:
                process = subprocess.Popen(
                    [*_until_this_process_ends(), str(binary), *_arguments(folder, port)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    start_new_session=True,  # Ctrl-C is for the replay, which ends it in its own time
                )
            except OSError as error:
                raise ReplayError(f"cannot start {binary}: {error.strerror or error}.") from error
        try:
            if _ready(process, url):
                return process, url
        except BaseException:
            process.kill()
            process.wait()
            raise
        process.kill()
        process.wait()
    tail = " ".join((folder / "log").read_text(encoding="utf-8", errors="replace").split())[-500:]
    raise ReplayError(f"{binary} did not start for the replay: {tail or 'it said nothing'}.")


def _until_this_process_ends() -> list[str]:
    """Return what runs a program so that it ends with this process, even if that is killed."""
    setpriv = shutil.which("setpriv")  # of util-linux
    return [setpriv, "--pdeathsig", "KILL"] if setpriv is not None else []


def _arguments(folder: Path, port: int) -> list[str]:
    return [
        f"--config.file={folder / 'prometheus.yml'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--storage.tsdb.retention.time={_FOREVER}",
        f"--storage.tsdb.min-block-duration={_FOREVER}",
        f"--storage.tsdb.max-block-duration={_FOREVER}",
        "--query.max-samples=2000000000",
        "--query.timeout=1h",
        "--log.level=warn",
    ]


def _ready(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"{url}/-/ready", timeout=5.0).ok:
                return True
        time.sleep(0.02)
    return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
