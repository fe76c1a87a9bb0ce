"""Choosing the ports that the stack listens on."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trainswitch_controller.cli.errors import PortInUse
from trainswitch_controller.cli.stack.record import ServiceName

LOOPBACK = "127.0.0.1"
DEFAULT_PORTS: dict[ServiceName, int] = {
    "prometheus": 9090,
    "alertmanager": 9093,
    "controller": 9095,
    "grafana": 3000,
}


_PATIENCE_S = 1.0


@dataclass(frozen=True)
class PortWish:
    """The port that a service should have."""

    port: int
    fixed: bool
    """Whether another port will not do."""
    way_out: str = ""
    """What to do where a fixed port is taken; the end of the error's sentence."""


def choose_ports(wishes: Mapping[ServiceName, PortWish]) -> dict[ServiceName, int]:
    """Return a free port of the loopback for each service: the wished one, or any where that is taken.

    Raises:
        PortInUse: a fixed port is taken.
    """
    chosen: dict[ServiceName, int] = {}
    with contextlib.ExitStack() as held:
        # Every port stays bound until all are chosen, so that no two services get the same.
        for name, wish in sorted(wishes.items(), key=lambda item: not item[1].fixed):
            bound = _bind_patiently(wish.port) if wish.fixed else _bind(wish.port)
            if bound is None and wish.fixed:
                raise PortInUse(f"port {wish.port} for {name} is taken: {wish.way_out}")
            listener = bound or _bind(0)
            if listener is None:
                raise PortInUse(f"no port of {LOOPBACK} is free for {name}: end what holds them.")
            held.enter_context(listener)
            chosen[name] = int(listener.getsockname()[1])
    return chosen


def _bind_patiently(port: int) -> socket.socket | None:
    """Bind a port that a process which was killed just now may still hold for a moment.

    The main thread of a process is gone before its other threads have closed its sockets.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (listener := _bind(port)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return listener


def _bind(port: int) -> socket.socket | None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # As the services do; without it, connections that are fading away would make a free port look taken.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener
