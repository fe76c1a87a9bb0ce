"""Delivers webhooks over connections that stay open, at a price that does not hold the controller up."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.storm.deliveries import Delivery

_LONGEST_S = 60.0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What became of one delivery."""

    delivery: Delivery
    status: int
    """HTTP status; 0 where the connection broke, or nothing came for a minute."""
    seconds: float
    """From the first byte sent to the last one read."""
    outcomes: tuple[str, ...] = ()
    """What the controller says it did with each alert."""


async def deliver(
    deliveries: Sequence[Delivery],
    port: int,
    token: str,
    connections: int,
    on_answer: Callable[[int], None] = lambda _count: None,
) -> list[Answer]:
    """Deliver all, over `connections` connections at once, each sending its next one when it has an answer.

    Args:
        deliveries: in the order in which they are begun.
        port: of the controller, on this machine.
        token: what Alertmanager presents.
        connections: how many.
        on_answer: called with the number of answers so far.
    """
    head = (
        f"POST /api/v1/alerts HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nUser-Agent: Alertmanager/storm\r\nContent-Length: "
    ).encode()
    waiting = collections.deque(deliveries)
    answers: list[Answer] = []

    async def connection() -> None:
        stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while waiting:
            delivery = waiting.popleft()
            body = delivery.body()
            request = b"%b%d\r\n\r\n%b" % (head, len(body), body)
            begun = time.perf_counter()
            try:
                stream = stream or await asyncio.open_connection("127.0.0.1", port)
                status, content = await asyncio.wait_for(_exchange(*stream, request), _LONGEST_S)
            except (OSError, EOFError, asyncio.TimeoutError, ValueError):
                status, content, stream = 0, b"{}", None
            seconds = time.perf_counter() - begun
            answers.append(Answer(delivery, status, seconds, _outcomes(content)))
            on_answer(len(answers))
        if stream is not None:
            stream[1].close()

    await asyncio.gather(*(connection() for _ in range(connections)))
    return answers


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.startswith("content-length:"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


def _outcomes(content: bytes) -> tuple[str, ...]:
    document: dict[str, Any] = json.loads(content)
    return tuple(one["outcome"] for one in document.get("outcomes", ()))
