"""Prometheus under test: configured as the local stack configures it, and watched from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import requests
import yaml

from trainswitch.errors import TrainswitchError
from trainswitch_controller.cli.assets import default_policy
from trainswitch_controller.cli.stack.configure import write_configurations
from trainswitch_controller.cli.stack.ports import DEFAULT_PORTS, LOOPBACK, PortWish, choose_ports
from trainswitch_controller.cli.stack.processes import log_tail
from trainswitch_controller.cli.stack.record import stack_folder
from trainswitch_controller.cli.stack.render import Addresses
from trainswitch_controller.cli.stack.services import READY_PATHS, launch_of

SCRAPE_SECONDS = 5
_JOB = "trainswitch"
_ABSENT = {"trainswitch-controller", "alertmanager"}
"""Jobs whose targets are not part of the measurement."""
_START_SECONDS = 60.0
_END_SECONDS = 30.0


class ServerFailed(TrainswitchError):
    """Prometheus did not start, or does not answer."""


@dataclasses.dataclass(frozen=True)
class Server:
    """A running Prometheus."""

    process: psutil.Process
    url: str
    configuration: Path
    document: Mapping[str, Any]
    """What the configuration says once the rules are loaded."""
    session: requests.Session

    def load_rules(self) -> None:
        """Begin to evaluate the rules, which `started` left out."""
        _write(self.configuration, self.document, rules=True)
        self.process.send_signal(signal.SIGHUP)

    def exposition(self) -> str:
        """Return its own metrics.

        Raises:
            ServerFailed: it does not answer.
        """
        return self._get("/metrics").text

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """Return what an instant query gives: labels and value of each series.

        Raises:
            ServerFailed: it does not answer.
        """
        result = self._get("/api/v1/query", query=expression).json()["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in result]

    def rules(self) -> list[dict[str, Any]]:
        """Return the groups, with their rules and how long each took the last time.

        Raises:
            ServerFailed: it does not answer.
        """
        groups: list[dict[str, Any]] = self._get("/api/v1/rules").json()["data"]["groups"]
        return groups

    def _get(self, path: str, **parameters: str) -> requests.Response:
        try:
            answer = self.session.get(self.url + path, params=parameters, timeout=_START_SECONDS)
            answer.raise_for_status()
        except requests.RequestException as error:
            raise ServerFailed(
                f"Prometheus at {self.url} does not answer {path}: {error}; it may be out of memory."
            ) from error
        return answer


@contextlib.contextmanager
def started(home: Path, binary: Path) -> Iterator[Server]:
    """Run Prometheus in `home` as ``trainswitch stack up`` would, to scrape the targets there; no rules yet.

    Raises:
        ServerFailed: it does not start.
    """
    ports = {**DEFAULT_PORTS, **choose_ports({"prometheus": PortWish(0, fixed=False)})}
    addresses: Addresses = {str(name): f"{LOOPBACK}:{port}" for name, port in ports.items()}
    stack_folder(home).mkdir(parents=True, exist_ok=True)
    write_configurations(home, addresses)
    configuration = stack_folder(home) / "prometheus.yml"
    document = _reduced(yaml.safe_load(configuration.read_text(encoding="utf-8")))
    _write(configuration, document, rules=False)
    launch = launch_of(
        "prometheus", home=home, policy=default_policy(), binaries={"prometheus": binary}, addresses=addresses
    )
    log = home / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.arguments, env=launch.environment, stdout=output, stderr=subprocess.STDOUT
        )
    session = requests.Session()
    session.trust_env = False  # a proxy cannot reach this machine's own loopback
    url = f"http://{addresses['prometheus']}"
    try:
        _wait_until_ready(process, session, url, log)
        yield Server(psutil.Process(process.pid), url, configuration, document, session)
    finally:
        session.close()
        process.terminate()
        try:
            process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(
    process: subprocess.Popen[bytes], session: requests.Session, url: str, log: Path
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(requests.RequestException):
            if session.get(url + READY_PATHS["prometheus"], timeout=1.0).ok:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServerFailed(f"Prometheus did not start; its log ends with:\n{log_tail(log)}")
        time.sleep(0.1)


def _reduced(document: dict[str, Any]) -> dict[str, Any]:
    """Return the stack's configuration: the ranks scraped less often, without what does not run here."""
    jobs = [job for job in document["scrape_configs"] if job["job_name"] not in _ABSENT]
    for job in jobs:
        if job["job_name"] == _JOB:
            job |= {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"}
    # As prometheus.yml says: what may act is evaluated as often as the ranks are scraped.
    document["global"]["evaluation_interval"] = f"{SCRAPE_SECONDS}s"
    return {
        name: jobs if name == "scrape_configs" else part
        for name, part in document.items()
        if name != "alerting"
    }


def _write(configuration: Path, document: Mapping[str, Any], *, rules: bool) -> None:
    kept = {name: part for name, part in document.items() if rules or name != "rule_files"}
    configuration.write_text(yaml.safe_dump(kept), encoding="utf-8")
