"""Mutual TLS: only who has a certificate of the named authority reaches the controller."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from trainswitch_controller import connections
from trainswitch_controller.cli import main
from trainswitch_controller.errors import ServeError, SettingsError


@dataclasses.dataclass(frozen=True)
class Certificates:
    """PEM files: the authority's, the server's, one of a client, and one of another authority's client."""

    ca: Path
    server: dict[str, Any]
    client: Path
    stranger: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of two authorities."""
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    server = ours.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    for name, authority in (("client", ours), ("stranger", theirs)):
        authority.issue_cert("ops@example.org").private_key_and_cert_chain_pem.write_to_path(
            folder / f"{name}.pem"
        )
    settings = {
        "tls_cert": folder / "cert.pem", "tls_key": folder / "key.pem", "tls_client_ca": folder / "ca.pem"
    }  # fmt: skip
    return Certificates(folder / "ca.pem", settings, folder / "client.pem", folder / "stranger.pem")


def ask(server: Any, certificates: Certificates, own: Path | None) -> int:
    """Return the code of ``/-/healthy``, asked with the certificate in `own`."""
    context = ssl.create_default_context(cafile=str(certificates.ca))
    if own is not None:
        context.load_cert_chain(own)
    with httpx.Client(verify=context) as client:
        return client.get(f"https://127.0.0.1:{server.port}/-/healthy").status_code


def test_a_client_needs_a_certificate(certificates: Certificates, make_server: Callable[..., Any]) -> None:
    """Neither health nor metrics are told to whoever has none, or one of another authority."""
    server = make_server(**certificates.server)
    assert ask(server, certificates, certificates.client) == 200
    for own in (None, certificates.stranger):
        with pytest.raises(httpx.TransportError):
            ask(server, certificates, own)


def test_a_handshake_that_does_not_come_is_not_waited_for(
    certificates: Certificates, make_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who connects and says nothing is cut off before TLS as well, where no connection is counted yet."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    server = make_server(**certificates.server)
    silent = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    with silent, contextlib.suppress(ConnectionResetError):
        assert silent.recv(1) == b""


def test_the_command_line_shows_its_certificate(
    certificates: Certificates,
    make_server: Callable[..., Any],
    home: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three variables name its files; what is missing is said, with the variable's name."""
    home.trainer()
    server = make_server(**certificates.server)
    command = [
        "status",
        f"--controller=https://127.0.0.1:{server.port}",
        f"--token-file={home.folder}/operator.token",
    ]
    for name in ("CA_FILE", "CLIENT_CERT_FILE", "CLIENT_KEY_FILE", "HOME"):
        monkeypatch.delenv(f"TRAINSWITCH_{name}", raising=False)
    monkeypatch.chdir(home.folder)  # without a controller, runs of the folder here would be told

    assert main(command) != 0
    assert "name its authority in $TRAINSWITCH_CA_FILE" in capsys.readouterr().err
    monkeypatch.setenv("TRAINSWITCH_CA_FILE", str(certificates.ca))
    assert main(command) != 0
    assert "name yours in $TRAINSWITCH_CLIENT_CERT_FILE" in capsys.readouterr().err
    monkeypatch.setenv("TRAINSWITCH_CLIENT_CERT_FILE", str(certificates.client))
    assert main(command) == 0
    assert "demo" in capsys.readouterr().out
    monkeypatch.setenv("TRAINSWITCH_CA_FILE", "/nowhere")
    assert main(command) != 0
    assert "$TRAINSWITCH_CA_FILE names '/nowhere', where there is no file" in capsys.readouterr().err


def test_what_has_no_effect_or_cannot_work_is_refused(
    certificates: Certificates, home: Any, make_server: Callable[..., Any]
) -> None:
    """Clients' certificates without TLS, and a file that holds no authority."""
    with pytest.raises(SettingsError, match="tls_client_ca has no effect without TLS"):
        home.settings(tls_client_ca=certificates.ca)
    with pytest.raises(ServeError, match=r"for clients of .*policy\.yml cannot work"):
        make_server(**{**certificates.server, "tls_client_ca": home.folder / "policy.yml"})
