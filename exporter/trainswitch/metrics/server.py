"""The scrape endpoint: ``/metrics`` and ``/-/healthy``, on loopback unless told otherwise."""

from __future__ import annotations

import contextlib
import hmac
import logging
import selectors
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from trainswitch.config import ServerConfig
from trainswitch.errors import ServerError

logger = logging.getLogger("trainswitch")

_REQUEST_TIMEOUT_SECONDS = 20.0
"""Longer than Prometheus's usual scrape interval, so that its connection is kept from scrape to scrape."""


class ScrapeServer:
    """Serves what `render` returns, from threads of its own."""

    def __init__(
        self,
        config: ServerConfig,
        local_rank: int,
        render: Callable[[], bytes],
        listener: socket.socket | None = None,
    ) -> None:
        """Bind the port: ``config.port + local_rank``, or any free one where that is taken.

        Args:
            config: address, token and certificate.
            local_rank: added to the port.
            render: gives the samples.
            listener: a socket that listens already, to be taken over instead.

        Raises:
            ServerError: nothing can be bound at `config.host`, or the token or the certificate is not usable.
        """
        self._render = render
        self._scraped = threading.Event()
        self._token = _read_token(config)
        self._server = _bind(config, local_rank) if listener is None else _adopt(listener)
        self._server.context = _tls_context(config, self._server)
        self._server.answer = self._answer
        self._server.scraped = self._scraped.set
        self.host = config.host
        self.port: int = self._server.server_address[1]
        self.scheme = "https" if self._server.context else "http"
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer requests until `close`."""
        self._wake, woken = socket.socketpair()
        self._thread = threading.Thread(
            target=self._serve, args=(woken,), name="trainswitch-server", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the samples are served."""
        return f"{self.scheme}://{self.authority}/metrics"

    @property
    def listener(self) -> socket.socket:
        """The listening socket, for a process that shall serve instead of this one."""
        return self._server.socket

    @property
    def authority(self) -> str:
        """Host and port, as they stand in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def linger(self, seconds: float) -> None:
        """Wait until the samples were scraped once more, at most `seconds`; not at all if nobody scrapes."""
        if self._scraped.is_set():
            self._scraped.clear()
            self._scraped.wait(seconds)

    def close(self) -> None:
        """Stop answering and free the port."""
        if self._wake is not None:
            self._wake.send(b"end")  # closing alone is not seen while a forked child has the other copy
            self._wake.close()
            self._wake = None
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._server.server_close()

    def _serve(self, woken: socket.socket) -> None:
        """Answer until woken; `serve_forever` would wake by itself, several times a second."""
        with woken, selectors.DefaultSelector() as waiting:
            waiting.register(self._server, selectors.EVENT_READ)
            waiting.register(woken, selectors.EVENT_READ)
            while all(key.fileobj is self._server for key, _ in waiting.select()):
                self._server.handle_request()

    def _answer(self, path: str, authorization: str) -> tuple[HTTPStatus, dict[str, str], bytes]:
        """Return status, headers and body for a GET of `path`."""
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        if path == "/-/healthy":
            return HTTPStatus.OK, headers, b"healthy\n"
        if path != "/metrics":
            return HTTPStatus.NOT_FOUND, headers, b"try /metrics\n"
        if not self._authorized(authorization):
            headers["WWW-Authenticate"] = "Bearer"
            return HTTPStatus.UNAUTHORIZED, headers, b"a bearer token is required\n"
        return HTTPStatus.OK, {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}, self._render()

    def _authorized(self, header: str) -> bool:
        if self._token is None:
            return True
        scheme, _, token = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode("latin-1"), self._token
        )


class _Handler(BaseHTTPRequestHandler):
    """Keeps the connection, as Prometheus does: a new one for each scrape would be a new thread, too."""

    protocol_version = "HTTP/1.1"
    server_version = "trainswitch"
    sys_version = ""
    timeout = _REQUEST_TIMEOUT_SECONDS  # nobody is held up for long by a client that sends nothing
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one piece
    server: _Server

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def _reply(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        try:
            status, headers, body = self.server.answer(path, self.headers.get("Authorization", ""))
        except Exception:
            logger.exception("the samples could not be given out")
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
            if path == "/metrics" and status is HTTPStatus.OK:
                self.wfile.flush()
                self.server.scraped()  # not earlier: whoever lingers for it then closes this connection

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name for it
        logger.debug("scrape endpoint: " + format, *args)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    timeout = 0.0  # handle_request() is called when there is one
    allow_reuse_address = True
    context: ssl.SSLContext | None = None
    answer: Callable[[str, str], tuple[HTTPStatus, dict[str, str], bytes]]
    scraped: Callable[[], None]
    """Called when samples have been sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        self._closed = False
        super().__init__(*args, **kwargs)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.context is None:
            self._converse(request, client_address)
            return
        # Here, in the request's own thread, so that a slow handshake holds up nobody else.
        request.settimeout(_REQUEST_TIMEOUT_SECONDS)
        with self.context.wrap_socket(request, server_side=True) as secured:
            self._converse(secured, client_address)

    def _converse(self, connection: socket.socket, client_address: Any) -> None:
        """Answer what comes over `connection` until either end closes it."""
        with self._open_lock:
            if self._closed:
                return
            self._open.add(connection)
        try:
            super().finish_request(connection, client_address)
        finally:
            with self._open_lock:
                self._open.discard(connection)

    def server_close(self) -> None:
        super().server_close()
        with self._open_lock:  # a connection that is kept would go on telling of a run that has ended
            self._closed = True
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        logger.debug("scrape endpoint: request from %s failed: %r", client_address, sys.exc_info()[1])


class _ServerV6(_Server):
    address_family = socket.AF_INET6


def _bind(config: ServerConfig, local_rank: int) -> _Server:
    server = _ServerV6 if ":" in config.host else _Server
    wanted = config.port + local_rank if config.port else 0
    try:
        return server((config.host, wanted), _Handler)
    except (OSError, OverflowError) as error:
        first = getattr(error, "strerror", None) or error
    try:
        bound = server((config.host, 0), _Handler)
    except OSError as error:
        raise ServerError(
            f"cannot open a scrape endpoint at {config.host}: {error.strerror or error}; "
            "set server.host to an address of this machine."
        ) from error
    logger.warning(
        "port %d is not free (%s): serving on port %d instead, as registered for Prometheus; "
        "set server.port to choose another.",
        wanted,
        first,
        bound.server_address[1],
    )
    return bound


def _adopt(listener: socket.socket) -> _Server:
    kind = _ServerV6 if listener.family == socket.AF_INET6 else _Server
    server = kind(listener.getsockname()[:2], _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_address = listener.getsockname()
    return server


def _read_token(config: ServerConfig) -> bytes | None:
    if config.bearer_token_file is None:
        return None
    try:
        token = config.bearer_token_file.read_bytes().strip()
    except OSError as error:
        raise ServerError(
            f"cannot read server.bearer_token_file {config.bearer_token_file}: {error.strerror or error}."
        ) from error
    if not token:
        raise ServerError(
            f"server.bearer_token_file {config.bearer_token_file} is empty: put the token in it."
        )
    return token


def _tls_context(config: ServerConfig, server: _Server) -> ssl.SSLContext | None:
    if config.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        server.server_close()
        raise ServerError(
            f"cannot use server.tls_cert {config.tls_cert} with server.tls_key {config.tls_key}: {error}."
        ) from error
    if config.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(config.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            server.server_close()
            raise ServerError(f"cannot use server.tls_client_ca {config.tls_client_ca}: {error}.") from error
    return context
