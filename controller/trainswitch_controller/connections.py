"""Connections that nobody can hold open for nothing, or open without end: uvicorn with bounds."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from trainswitch_controller.metrics import Metrics
from trainswitch_controller.ratelimit import network_of

REQUEST_S = 10.0
"""How long the head of a request may take from its first byte, or from the connection's beginning; and how
long the TLS handshake may take before."""
MAX_CONNECTIONS = 512
"""Of all clients together: below the 1,024 files that a process may usually open, so that the journal can."""
MAX_PER_CLIENT = 256


class BoundedProtocol(H11Protocol):
    """One connection.

    Uvicorn's own timeout begins only after a first answer, and its limit turns Alertmanager away like others.
    """

    metrics: ClassVar[Metrics]
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or break the connection off if there are too many."""
        super().connection_made(transport)
        mine = _client_of(self)
        same = sum(_client_of(other) == mine for other in self.connections)
        if len(self.connections) > MAX_CONNECTIONS or same > MAX_PER_CLIENT:
            self.metrics.refused("connections")
            transport.abort()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin to count the seconds, unless a request is being answered or they are counted already."""
        cycle: RequestResponseCycle | None = self.cycle  # declared there as never None, and None at first
        if cycle is not None and not cycle.response_complete:
            self._unwatch()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self._too_slow)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.metrics.refused("slow")
        self.transport.abort()


class BoundedServer(uvicorn.Server):
    """Uvicorn's server, where a TLS handshake has an end: before it, no protocol counts the connection."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        if self.config.is_ssl:
            loop = asyncio.get_running_loop()
            # Uvicorn has no setting for it, and asyncio waits for a minute.
            bounded = functools.partial(loop.create_server, ssl_handshake_timeout=REQUEST_S)
            loop.create_server = bounded  # type: ignore[method-assign]
        await super().startup(sockets)


def bounded_protocol(metrics: Metrics) -> type[BoundedProtocol]:
    """Return the protocol for one server, whose `metrics` count what the bounds end."""
    return type("ServedProtocol", (BoundedProtocol,), {"metrics": metrics})


def _client_of(protocol: object) -> str:
    client = getattr(protocol, "client", None)
    return network_of(client[0]) if client else ""
