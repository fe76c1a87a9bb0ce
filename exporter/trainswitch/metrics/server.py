"""The scrape endpoint: ``/metrics`` and ``/-/healthy``, on loopback unless told otherwise."""

from __future__ import annotations

import hmac
import logging
import selectors
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from trainswitch.config import ServerConfig
from trainswitch.errors import ServerError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

logger = logging.getLogger("trainswitch")

_REQUEST_TIMEOUT_SECONDS = 10.0


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
        self._server.set_app(self._app)
        self.host = config.host
        self.port: int = self._server.server_port
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

    def _app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        if environ.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            status, body = "405 Method Not Allowed", b"use GET\n"
        elif path == "/-/healthy":
            status, body = "200 OK", b"healthy\n"
        elif path != "/metrics":
            status, body = "404 Not Found", b"try /metrics\n"
        elif not self._authorized(environ.get("HTTP_AUTHORIZATION", "")):
            status, body = "401 Unauthorized", b"a bearer token is required\n"
            headers.append(("WWW-Authenticate", "Bearer"))
        else:
            status, body = "200 OK", self._render()
            headers = [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)]
            self._scraped.set()
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else body]

    def _authorized(self, header: str) -> bool:
        if self._token is None:
            return True
        scheme, _, token = header.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode("latin-1"), self._token
        )


class _Handler(WSGIRequestHandler):
    """Quiet, and never held up for long by a client that sends nothing."""

    timeout = _REQUEST_TIMEOUT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name for it
        logger.debug("scrape endpoint: " + format, *args)

    def get_stderr(self) -> Any:
        return _LogStream()


class _LogStream:
    """wsgiref writes tracebacks here; they go to the log, not into the trainer's output."""

    def write(self, text: str) -> None:
        if text.strip():
            logger.warning("scrape endpoint: %s", text.rstrip())

    def flush(self) -> None:
        """Nothing is buffered."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    timeout = 0.0  # handle_request() is called when there is one
    allow_reuse_address = True
    context: ssl.SSLContext | None = None

    def server_bind(self) -> None:
        # Not the base class's: it looks the host's full name up, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.socket.getsockname()[:2]
        self.server_name = host
        self.setup_environ()

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.context is None:
            super().finish_request(request, client_address)
            return
        # Here, in the request's own thread, so that a slow handshake holds up nobody else.
        request.settimeout(_REQUEST_TIMEOUT_SECONDS)
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

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
        bound.server_port,
    )
    return bound


def _adopt(listener: socket.socket) -> _Server:
    kind = _ServerV6 if listener.family == socket.AF_INET6 else _Server
    server = kind(listener.getsockname()[:2], _Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.server_name, server.server_port = listener.getsockname()[:2]
    server.setup_environ()
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
    return context
