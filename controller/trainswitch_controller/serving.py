"""Runs the controller's application on uvicorn: address, TLS, and the bounds of what a client may send."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from trainswitch.errors import TrainswitchError
from trainswitch_controller.app import create_app
from trainswitch_controller.connections import BoundedServer, bounded_protocol
from trainswitch_controller.errors import ServeError
from trainswitch_controller.settings import Settings

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16_384
"""Request line and headers together; more is answered with 400."""


def serve(settings: Settings) -> int:
    """Run the controller until SIGTERM or SIGINT and return the process's exit code.

    Settings, policy, tokens, TLS files or a port that cannot be used give one sentence on stderr and code 1.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        app = create_app(settings)
        app.state.controller.claim()
        listening = _listen(settings)
        with listening, _quiet_signals():
            server = BoundedServer(server_config(app, settings))
            log.info(
                "listening at %s://%s:%d",
                "https" if settings.tls_cert else "http",
                *listening.getsockname()[:2],
            )
            warn_if_open(settings, listening.getsockname()[0])
            server.run(sockets=[listening])
    except TrainswitchError as error:
        print(f"trainswitch controller: {error}", file=sys.stderr)
        return 1
    return 0 if server.started else 1


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """Return how uvicorn is to serve `app`.

    Raises:
        ServeError: the TLS files are not usable.
    """
    config = uvicorn.Config(
        app,
        http=bounded_protocol(app.state.controller.metrics),
        ws="none",
        log_config=None,
        # It warns of every request that is no HTTP, without end where somebody sends nothing else.
        log_level=logging.ERROR,
        access_log=False,
        server_header=False,
        # Otherwise whoever is on this machine could say to come from anywhere, and escape the limits.
        proxy_headers=False,
        lifespan="on",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        ssl_ca_certs=settings.tls_client_ca,
        ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        clients = f" for clients of {settings.tls_client_ca}" if settings.tls_client_ca else ""
        raise ServeError(
            f"TLS with {settings.tls_cert} and {settings.tls_key}{clients} cannot work: "
            f"{error.strerror or error}; give a PEM certificate chain, its private key"
            f"{' and a PEM file of authorities' if clients else ''}."
        ) from error
    return config


def warn_if_open(settings: Settings, address: str) -> None:
    """Say in the log if what is served at `address` can be overheard."""
    if settings.tls_cert is None and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        log.warning(
            "tokens and orders cross the network in the clear: whoever can listen on the way to %s can "
            "command the runs; give --tls-cert and --tls-key, or keep that network to yourself.",
            address,
        )


def _listen(settings: Settings) -> socket.socket:
    """Return the listening socket, so that a port in use is known before anything else is started."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        # create_server appends the address, which the sentence names already.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise ServeError(
            f"cannot listen at {settings.host}:{settings.port}: {why}; stop what uses "
            "that address, or give another host or port."
        ) from error


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """Let uvicorn, which raises a signal once more after its orderly end, not end the process by it."""
    kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
