"""`serve` as a process: it says what is wrong in one sentence, and it ends in order."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from trainswitch_controller.serving import warn_if_open

SCRIPT = """
import sys
from trainswitch_controller.serving import serve
from trainswitch_controller.settings import Settings
sys.exit(serve(Settings.model_validate_json(sys.argv[1])))
"""


@pytest.fixture
def start(home: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start controllers as processes; those still alive are killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def run(**changes: Any) -> subprocess.Popen[str]:
        settings = home.settings(**changes)
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, settings.model_dump_json()],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def port_of(process: subprocess.Popen[str]) -> int:
    """Read the log until it names the port."""
    assert process.stderr is not None
    for line in process.stderr:
        if "listening at" in line:
            return int(line.rsplit(":", 1)[1])
    raise AssertionError("the controller did not listen")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(
    number: int, tools: Any, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """SIGTERM and SIGINT let requests end and give exit code 0."""
    process = start(port=0)
    address = f"http://127.0.0.1:{port_of(process)}"
    tools.wait_for(lambda: httpx.get(f"{address}/-/ready").status_code == 200)
    process.send_signal(number)
    _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in rest


def test_a_port_in_use_is_one_sentence(start: Callable[..., subprocess.Popen[str]]) -> None:
    """Exit code 1, and a sentence that names the address and the way out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(port=port)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    line = log.splitlines()[-1]
    assert line.startswith(
        f"trainswitch controller: cannot listen at 127.0.0.1:{port}: Address already in use;"
    )


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda home: home.write_policy("version: 1\nalert: {}"), "did you mean 'alerts'?"),
        (lambda home: (home.folder / "operator.token").chmod(0o644), "chmod 600"),
        (lambda home: (home.folder / "alertmanager.token").write_text(""), "is empty"),
    ],
)
def test_bad_files_are_one_sentence(
    spoil: Callable[[Any], object], words: str, home: Any, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """A policy or token file that is not valid is found before anything is opened."""
    spoil(home)
    process = start(port=0)
    _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    [line] = log.splitlines()
    assert words in line


def test_tls_files_that_are_none_are_one_sentence(
    home: Any, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """A certificate that cannot be loaded is named."""
    process = start(port=0, tls_cert=home.folder / "policy.yml", tls_key=home.folder / "policy.yml")
    _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "give a PEM certificate chain" in log
    assert "Traceback" not in log


def test_tls(tmp_path: Path, tools: Any, start: Callable[..., subprocess.Popen[str]]) -> None:
    """With a certificate and its key the controller speaks HTTPS."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "1",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    process = start(port=0, tls_cert=cert, tls_key=key)
    port = port_of(process)
    trusted = ssl.create_default_context(cafile=str(cert))
    tools.wait_for(lambda: httpx.get(f"https://127.0.0.1:{port}/-/ready", verify=trusted).status_code == 200)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/-/healthy")


def test_plain_http_beyond_loopback_is_said(home: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One line of the log, with the way out; on loopback, or with TLS, there is none."""
    warn_if_open(home.settings(), "127.0.0.1")
    warn_if_open(home.settings(), "::1")
    warn_if_open(home.settings(tls_cert="cert.pem", tls_key="key.pem"), "0.0.0.0")
    assert caplog.text == ""
    for address in ("0.0.0.0", "10.0.0.1", "::", "fe80::1%eth0"):
        caplog.clear()
        warn_if_open(home.settings(), address)
        assert "tokens and orders cross the network in the clear" in caplog.text
        assert "--tls-cert" in caplog.text
