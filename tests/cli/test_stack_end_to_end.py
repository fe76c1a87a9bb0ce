"""The local stack with the real Prometheus and Alertmanager."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests
import yaml
from tests.cli.support import Run, until

from trainswitch_controller.cli.errors import MissingBinary, PortInUse, StackError
from trainswitch_controller.cli.stack import Stack, binaries, load_stack, probe_stack, start_stack, stop_stack
from trainswitch_controller.cli.stack.processes import find_running
from trainswitch_controller.cli.tokens import operator_token_path

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _nothing_stays(home: Path) -> Iterator[None]:
    """End whatever a test left running in its home."""
    yield
    stop_stack(home)


def services_of(home: Path) -> list[psutil.Process]:
    """Return every process of this machine that names `home` on its command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid() and any(str(home) in part for part in process.info["cmdline"] or ())
    ]


def up(home: Path, **options: object) -> tuple[Stack, list[str]]:
    """Start the stack in `home` and return it with what was said about it."""
    said: list[str] = []
    return start_stack(home, on_progress=said.append, **options), said  # type: ignore[arg-type]


def test_up_and_down(run: Run, home: Path) -> None:
    """Up starts ready services with local configurations, a second up changes nothing, down ends them."""
    started = run("stack", "up", "--json")
    assert started.code == 0, started.err
    document = json.loads(started.out)
    processes = {row["name"]: row for row in document["processes"]}
    assert {"prometheus", "alertmanager", "controller"} <= set(processes)
    assert {row["state"] for row in processes.values()} == {"ready"}
    assert document["operator_token_file"] == str(operator_token_path(home))

    configured = yaml.safe_load(
        requests.get(f"{processes['prometheus']['url']}/api/v1/status/config", timeout=5).json()["data"][
            "yaml"
        ]
    )
    trainers = next(job for job in configured["scrape_configs"] if job["job_name"] == "trainswitch")
    assert trainers["file_sd_configs"][0]["files"] == [str(home / "targets" / "*.json")]
    assert requests.get(f"{processes['prometheus']['url']}/api/v1/rules", timeout=5).json()["data"]["groups"]

    again = run("stack", "up", "--json")
    assert again.code == 0
    assert "already running" in again.err
    assert json.loads(again.out)["processes"] == document["processes"]
    assert run("stack", "status").code == 0
    assert run("status").code == 0

    ended = run("stack", "down", "--json")
    assert ended.code == 0
    assert set(json.loads(ended.out)["ended"]) == set(processes)
    assert services_of(home) == []
    assert run("stack", "down").code == 0
    assert run("stack", "status").code == 1


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a stack that is up, for tests that leave one that is up."""
    home = tmp_path_factory.mktemp("running") / "home"
    start_stack(home)
    yield home
    stop_stack(home)


def stack_of(home: Path) -> Stack:
    """Return the stack that is on record in `home`."""
    stack = load_stack(home)
    assert stack is not None
    return stack


def test_alerts_travel_from_prometheus_to_the_controller(running: Path) -> None:
    """The Watchdog reaches the controller through Alertmanager: addresses and token fit together."""
    stack = stack_of(running)

    def webhooks() -> bool:
        text = requests.get(f"{stack.controller}/metrics", timeout=5).text
        return any(
            line.startswith('trainswitch_controller_webhooks_total{code="200"}') and not line.endswith(" 0.0")
            for line in text.splitlines()
        )

    until(webhooks, 90.0)


def test_what_died_is_started_again_where_it_was(running: Path, tmp_path: Path) -> None:
    """Up after a crash starts only what is dead, on the port that the others know.

    A policy that is named when the controller has to be started again is the one it gets.
    """
    stack = stack_of(running)
    dead = stack.process("alertmanager")
    killed = (dead, stack.process("controller"))
    for process in killed:
        os.kill(process.pid, signal.SIGKILL)
    until(lambda: not any(find_running(process) for process in killed), 10.0)
    assert probe_stack(stack)["alertmanager"] == "dead"
    policy = tmp_path / "policy.yml"
    policy.write_text("version: 1\nmode: observe\nalerts: {TrainNonFinite: {ladder: [{action: pause}]}}\n")
    mended, said = up(running, policy=policy)
    assert mended.process("alertmanager").port == dead.port
    assert mended.process("alertmanager").pid != dead.pid
    assert mended.process("prometheus") == stack.process("prometheus")
    assert not any("Starting prometheus" in sentence for sentence in said)
    assert mended.policy == policy
    assert f"--policy={policy}" in psutil.Process(mended.process("controller").pid).cmdline()


def test_wishes_that_a_running_stack_does_not_meet_are_refused(
    running: Path, tmp_path: Path, free_port: int
) -> None:
    """Another port or policy is not ignored; the way out is named."""
    with pytest.raises(StackError, match=r"already running on port .* 'trainswitch stack down' first"):
        up(running, prometheus_port=free_port)
    with pytest.raises(StackError, match=r"already running with .* 'trainswitch stack down' first"):
        up(running, policy=tmp_path / "other.yml")


def test_a_port_that_was_insisted_on_and_is_taken_is_refused(run: Run, home: Path) -> None:
    """The port is named, the exit code is 1, and nothing was started."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        finished = run("stack", "up", "--prometheus-port", str(port))
        with pytest.raises(PortInUse):
            up(home, prometheus_port=port)
    assert finished.code == 1
    assert f"port {port} for prometheus is taken" in finished.err
    assert services_of(home) == []


def test_a_service_that_does_not_start_takes_the_rest_down_again(home: Path, tmp_path: Path) -> None:
    """The last lines of its log are shown, and no process and no record stays."""
    policy = tmp_path / "policy.yml"
    policy.write_text("no_such_key: 1\n")
    with pytest.raises(
        StackError, match=r"controller ended while it was starting; its log (.|\n)*no_such_key"
    ):
        up(home, policy=policy)
    assert services_of(home) == []
    assert load_stack(home) is None


def test_ctrl_c_takes_down_what_was_started(home: Path) -> None:
    """An interrupted up leaves no process behind and ends with 130."""
    command = [sys.executable, "-m", "trainswitch_controller", "stack", "up"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "Starting controller" in line:
            break
    until(lambda: len(services_of(home)) >= 3, 30.0)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert services_of(home) == []
    assert load_stack(home) is None


def test_two_ups_at_once_start_one_stack(home: Path) -> None:
    """The second waits for the first and finds its work done."""
    stacks: list[Stack] = []
    threads = [threading.Thread(target=lambda: stacks.append(start_stack(home))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90.0)
    first, second = stacks
    assert first == second
    assert len(services_of(home)) == len(first.processes)


def test_without_prometheus_up_says_how_to_install_it(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing on PATH, one sentence has the command that installs both."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binaries, "EXTRA_FOLDERS", dict.fromkeys(binaries.EXTRA_FOLDERS, ("/nowhere",)))
    finished = run("stack", "up")
    assert finished.code == 1
    assert "'sudo apt-get install prometheus prometheus-alertmanager'" in finished.err
    with pytest.raises(MissingBinary):
        up(home)
    assert services_of(home) == []


def test_grafana_is_started_where_it_is_installed(home: Path, tmp_path: Path) -> None:
    """A program of Grafana's name gets its settings by environment, and its address is in the record.

    The program stands in for Grafana, which no distribution carries: it shows how Grafana would be started.
    """
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    program = bin_dir / "grafana"
    program.write_text(f"#!{sys.executable}\n{GRAFANA}")
    program.chmod(0o755)
    stack, _ = up(home, bin_dirs=(bin_dir,))
    assert stack.grafana is not None
    seen = requests.get(f"{stack.grafana}/api/health", timeout=5).json()
    assert seen["arguments"][0] == "server"
    assert seen["environment"]["TRAINSWITCH_PROMETHEUS_URL"] == stack.prometheus
    assert (Path(seen["environment"]["GF_PATHS_PROVISIONING"]) / "datasources").is_dir()
    assert list(Path(seen["environment"]["TRAINSWITCH_DASHBOARDS"]).glob("*.json"))
    assert Path(seen["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).is_file()


GRAFANA = """
import http.server, json, os, sys
if "--version" in sys.argv:
    print("grafana version 11.1.0")
    raise SystemExit

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ)}).encode())

address = os.environ["GF_SERVER_HTTP_ADDR"], int(os.environ["GF_SERVER_HTTP_PORT"])
http.server.HTTPServer(address, Handler).serve_forever()
"""
