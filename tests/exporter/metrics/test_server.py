"""The scrape endpoint and its registration."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import trustme

from trainswitch.config import ServerConfig
from trainswitch.errors import RunNameError, ServerError
from trainswitch.metrics.discovery import TargetRegistration
from trainswitch.metrics.server import ScrapeServer


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts servers and closes them."""
    started: list[ScrapeServer] = []

    def start(**settings: Any) -> ScrapeServer:
        server = ScrapeServer(ServerConfig(**{"port": 0, **settings}), 0, lambda: b"train_step 1\n")
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


def get(url: str, token: str | None = None, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    """Return status and body."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=5, context=context
        ) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_it_serves_metrics_on_loopback(serve: Any) -> None:
    """/metrics has the samples, /-/healthy answers, anything else is 404."""
    server = serve()
    base = f"http://127.0.0.1:{server.port}"
    assert server.host == "127.0.0.1"
    assert get(f"{base}/metrics") == (200, b"train_step 1\n")
    assert get(f"{base}/-/healthy")[0] == 200
    assert get(f"{base}/../etc/passwd")[0] == 404


def test_a_token_is_needed_where_one_is_set(serve: Any, tmp_path: Path) -> None:
    """Without the token, or with a wrong one, there are no samples; health needs none."""
    token_file = tmp_path / "token"
    token_file.write_text("secret\n")
    server = serve(bearer_token_file=token_file)
    url = f"http://127.0.0.1:{server.port}/metrics"
    assert get(url)[0] == 401
    assert get(url, "wrong")[0] == 401
    assert get(url, "secret") == (200, b"train_step 1\n")
    assert get(f"http://127.0.0.1:{server.port}/-/healthy")[0] == 200


@pytest.mark.parametrize("content", [None, b"", b" \n"])
def test_a_missing_or_empty_token_never_serves_in_the_open(tmp_path: Path, content: bytes | None) -> None:
    """A token that cannot be used is an error at the start."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ServerError, match="bearer_token_file"):
        ScrapeServer(ServerConfig(port=0, bearer_token_file=path), 0, bytes)


def test_tls_with_a_certificate(serve: Any, tmp_path: Path) -> None:
    """With a certificate the endpoint speaks HTTPS, and a plain-text client gets nothing."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server = serve(tls_cert=cert, tls_key=key)
    context = ssl.create_default_context(cafile=str(cert))
    assert get(f"https://127.0.0.1:{server.port}/metrics", context=context) == (200, b"train_step 1\n")
    with pytest.raises(OSError, match=r"."):
        get(f"http://127.0.0.1:{server.port}/metrics")
    assert get(f"https://127.0.0.1:{server.port}/metrics", context=context)[0] == 200


def test_scrapes_with_certificates_only(serve: Any, tmp_path: Path) -> None:
    """With `tls_client_ca` a scrape without a certificate of that authority gets nothing."""
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    own.write_to_path(tmp_path / "own.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = serve(
        tls_cert=tmp_path / "own.pem", tls_key=tmp_path / "own.pem", tls_client_ca=tmp_path / "ca.pem"
    )
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with pytest.raises(OSError, match=r"."):
        get(f"https://127.0.0.1:{server.port}/metrics", context=context)
    context.load_cert_chain(tmp_path / "own.pem")
    assert get(f"https://127.0.0.1:{server.port}/metrics", context=context) == (200, b"train_step 1\n")
    (tmp_path / "token").write_text("no certificate")
    with pytest.raises(ServerError, match=r"server\.tls_client_ca .*token"):
        serve(tls_cert=tmp_path / "own.pem", tls_key=tmp_path / "own.pem", tls_client_ca=tmp_path / "token")


def test_a_certificate_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    """A wrong certificate names both files."""
    cert = tmp_path / "cert.pem"
    cert.write_text("no certificate")
    with pytest.raises(ServerError, match=r"server\.tls_cert .*cert\.pem"):
        ScrapeServer(ServerConfig(port=0, tls_cert=cert, tls_key=cert), 0, bytes)


def test_a_port_in_use_is_replaced_by_a_free_one(caplog: pytest.LogCaptureFixture) -> None:
    """A taken port costs nothing but a sentence that names it: another one serves."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = ScrapeServer(ServerConfig(port=port), 0, lambda: b"x\n")
        server.start()
        try:
            assert server.port != port
            assert f"port {port} is not free" in caplog.text
            assert get(f"http://127.0.0.1:{server.port}/metrics")[0] == 200
        finally:
            server.close()


def test_a_silent_client_holds_nobody_up(serve: Any) -> None:
    """A connection that sends nothing does not keep others from being served."""
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(f"http://127.0.0.1:{server.port}/metrics")[0] == 200


def test_a_connection_is_kept_from_scrape_to_scrape(serve: Any) -> None:
    """Several requests go over one connection, a refused one among them, as Prometheus sends them."""
    connection = HTTPConnection("127.0.0.1", serve().port, timeout=5)
    with contextlib.closing(connection):
        connection.connect()
        kept = connection.sock
        for path, status in (("/metrics", 200), ("/nowhere", 404), ("/metrics?x=1", 200)):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (status, True)
        connection.request("HEAD", "/metrics")
        assert connection.getresponse().read() == b""
        assert connection.sock is kept


def test_a_kept_connection_ends_with_the_run() -> None:
    """After the end, nothing is told over a connection from before: a target that is gone has no samples."""
    server = ScrapeServer(ServerConfig(port=0), 0, lambda: b"train_step 1\n")
    server.start()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=5)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        server.close()
        assert connection.sock is not None
        assert connection.sock.recv(1) == b""


def test_the_last_scrape_is_sent_whole() -> None:
    """Whoever lingers for it and then closes waits until it has left, not only until it was rendered."""
    body = b"x" * 20_000_000
    server = ScrapeServer(ServerConfig(port=0), 0, lambda: body)
    server.start()
    assert get(server.url) == (200, body)
    assert server._scraped.wait(10.0)

    def end() -> None:
        server.linger(30.0)
        server.close()

    ending = threading.Thread(target=end)
    ending.start()
    while server._scraped.is_set():  # until it lingers: an Event wakes nobody when it is cleared
        time.sleep(0.001)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        ending.join(0.5)  # it cannot have ended: this client has not read
        assert len(connection.getresponse().read()) == len(body)
    ending.join(10.0)
    assert not ending.is_alive()


def test_samples_that_cannot_be_rendered_are_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong in rendering is logged and answered with 500; the next request is served."""

    def render() -> bytes:
        if not rendered:
            rendered.append(1)
            raise ValueError("odd")
        return b"x\n"

    rendered: list[int] = []
    server = ScrapeServer(ServerConfig(port=0), 0, render)
    server.start()
    try:
        assert get(server.url)[0] == 500
        assert get(server.url) == (200, b"x\n")
    finally:
        server.close()
    assert "could not be given out" in caplog.text


def test_registration_is_written_and_emptied(tmp_path: Path) -> None:
    """file_sd gets address and labels; at the end the file holds no target, but stays."""
    registration = TargetRegistration(tmp_path / "targets", run="a.b", rank=2, node="host")
    registration.register("::1", 9402, "http")
    path = tmp_path / "targets" / "a.b.2.json"
    assert json.loads(path.read_text()) == [
        {
            "targets": ["[::1]:9402"],
            "labels": {"run": "a.b", "rank": "2", "node": "host", "__scheme__": "http"},
        }
    ]
    registration.withdraw()
    assert json.loads(path.read_text()) == []


@pytest.mark.parametrize("run", ["../x", "a/b", "", ".hidden", "x" * 129])
def test_a_run_name_cannot_lead_outside(tmp_path: Path, run: str) -> None:
    """Names that could be a path are refused before they become a file name."""
    with pytest.raises(RunNameError):
        TargetRegistration(tmp_path, run=run, rank=0, node="n")
