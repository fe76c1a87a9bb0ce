"""A process that serves the pages of many synthetic ranks, each at a port of its own.

    python -m benchmarks.scale.fleet TARGETS_FOLDER RUNS RANKS_OF_A_RUN

It registers every rank in the folder as a trainer does, prints one line when all are served, and ends when
its standard input is closed. It shares its cores with the Prometheus that is measured, so it renders a page
of each voice once a step, and gives it to all ranks that the voice speaks for.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from pathlib import Path

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from benchmarks.scale.ranks import RANKS_ON_A_MACHINE, STEP_SECONDS, Page, Voice, node
from trainswitch.metrics.discovery import TargetRegistration

HOST = "127.0.0.1"
_FIRST = -1
_BACKLOG = 16
_HEAD = f"HTTP/1.0 200 OK\r\nContent-Type: {CONTENT_TYPE_PLAIN_0_0_4}\r\nContent-Length: %d\r\n\r\n".encode()


class Choir:
    """The voices of all ranks: one for the first rank of a run, one for each place on a machine."""

    def __init__(self, ranks_of_a_run: int) -> None:
        now = time.time()
        self._voices = {
            place: Voice(local_rank=max(place, 0), first=place == _FIRST, world_size=ranks_of_a_run, now=now)
            for place in (_FIRST, *range(min(RANKS_ON_A_MACHINE, ranks_of_a_run)))
        }
        self._texts: dict[int, bytes] = {}
        self._pages: dict[tuple[int, str], Page] = {}
        self.step()

    def step(self) -> None:
        """Let every rank take a step that ends now."""
        now = time.time()
        for place, voice in self._voices.items():
            voice.step(now)
            self._texts[place] = voice.render()
        self._pages = {}

    def page(self, run: str, rank: int) -> bytes:
        """Return what one rank of one run has to say."""
        place = rank % RANKS_ON_A_MACHINE if rank else _FIRST
        page = self._pages.get((place, run))
        if page is None:
            page = self._pages[place, run] = Page(self._texts[place], run)
        return page.signed(rank)


class Endpoint(asyncio.Protocol):
    """Answers one request for one rank's page and closes, as the trainer's endpoint does."""

    def __init__(self, choir: Choir, run: str, rank: int) -> None:
        self._choir = choir
        self._name = (run, rank)
        self._transport: asyncio.Transport | None = None
        self._asked = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where the answer goes."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer once the request is complete; whatever it asks for, it is the page."""
        self._asked += data
        if self._transport is None or not self._asked.endswith(b"\r\n\r\n"):
            return
        body = self._choir.page(*self._name)
        self._transport.writelines((_HEAD % len(body), body))
        self._transport.close()


async def serve(targets: Path, runs: int, ranks_of_a_run: int) -> None:
    """Serve and register every rank, and step until standard input ends."""
    loop = asyncio.get_running_loop()
    choir = Choir(ranks_of_a_run)
    for run in (f"scale-{number}" for number in range(runs)):
        for rank in range(ranks_of_a_run):
            server = await loop.create_server(
                functools.partial(Endpoint, choir, run, rank), HOST, 0, backlog=_BACKLOG
            )
            port = server.sockets[0].getsockname()[1]
            TargetRegistration(targets, run=run, rank=rank, node=node(run, rank)).register(HOST, port, "http")
    print("ready", flush=True)
    ended = loop.run_in_executor(None, sys.stdin.read)
    while not ended.done():
        await asyncio.wait([ended], timeout=STEP_SECONDS)
        # In a thread, because rendering sleeps now and then, to let a trainer train.
        await loop.run_in_executor(None, choir.step)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
