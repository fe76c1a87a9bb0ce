"""Endpoint: what Prometheus sees of one rank, from its registration to its withdrawal."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from trainswitch.config import MonitorConfig, ServerConfig
from trainswitch.errors import ServerError
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.metrics.collectors import Collectors, start_collectors
from trainswitch.metrics.discovery import TargetRegistration
from trainswitch.metrics.server import ScrapeServer
from trainswitch.recording.records import Record
from trainswitch.recording.ring import RingReader

logger = logging.getLogger("trainswitch")


class Endpoint:
    """Aggregator, HTTP server and registration; needs nothing of the trainer but its ring."""

    def __init__(
        self,
        reader: RingReader,
        local_rank: int,
        version: str,
        *,
        listener: socket.socket | None = None,
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        """Bind the port; nothing is served yet.

        Args:
            reader: of the run's ring.
            local_rank: added to the port.
            version: of trainswitch.
            listener: a socket that listens already; used instead of binding one.
            on_record: hears each record that the aggregator takes in.

        Raises:
            ServerError: the token or the certificate cannot be used. A port that cannot be had is logged
                instead: training goes on without being scraped, rather than in the open.
        """
        config = MonitorConfig.model_validate(reader.meta["config"])
        self._config = config.server
        self._meta = reader.meta
        self._collectors: Collectors | None = None
        self.aggregator = Aggregator(reader, version, on_record=on_record)
        self._server = open_server(config.server, local_rank, self.aggregator.render, listener)
        self._registration = TargetRegistration(
            config.server.targets_dir,
            run=reader.meta["run"],
            rank=reader.meta["rank"],
            node=reader.meta["node"],
        )

    @property
    def url(self) -> str | None:
        """Where the samples are served; None where no port could be had."""
        return self._server.url if self._server else None

    def start(self) -> None:
        """Aggregate, collect what this machine says of itself, serve and register."""
        self.aggregator.start()
        self._collectors = start_collectors(self.aggregator.metrics, self._meta)
        if self._server is None:
            return
        self._server.start()
        try:
            host = self._config.advertise or self._server.host
            self._registration.register(host, self._server.port, self._server.scheme)
        except OSError as error:
            logger.warning(
                "cannot register with Prometheus at %s: %s; it will not find this run by file_sd.",
                self._registration.path,
                error.strerror or error,
            )

    def statistics_state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the statistics; see `Aggregator.statistics_state`."""
        return self.aggregator.statistics_state()

    def load_statistics(self, state: Mapping[str, Any]) -> None:
        """Let the statistics go on from a checkpoint's.

        Raises:
            ValueError: `state` cannot be read; the statistics stay as they are.
        """
        self.aggregator.load_statistics(state)

    def leave(self) -> None:
        """Stop serving, but stay registered: another process goes on with the same socket."""
        if self._server is not None:
            self._server.close()
        self._end_collection()

    def close(self, linger_seconds: float | None = None) -> None:
        """Let the final samples be scraped, withdraw, and stop serving.

        Args:
            linger_seconds: how long to wait for that scrape at most; as configured by default.
        """
        self.aggregator.drain()
        if self._server is not None:
            self._server.linger(self._config.linger_seconds if linger_seconds is None else linger_seconds)
            try:
                self._registration.withdraw()
            except OSError as error:
                logger.warning("cannot withdraw %s: %s.", self._registration.path, error.strerror or error)
            self._server.close()
        self._end_collection()

    def _end_collection(self) -> None:
        if self._collectors is not None:
            self._collectors.close()
        self.aggregator.close()


def open_server(
    config: ServerConfig,
    local_rank: int,
    render: Callable[[], bytes],
    listener: socket.socket | None = None,
) -> ScrapeServer | None:
    """Open the server that the configuration asks for; see `ScrapeServer` for the arguments.

    Raises:
        ServerError: the token or the certificate cannot be used. A port that cannot be had is logged instead:
            training goes on without being scraped, rather than in the open.
    """
    try:
        return ScrapeServer(config, local_rank, render, listener)
    except ServerError as error:
        if config.protected:
            raise
        logger.warning("%s Training goes on without being scraped.", error)
        return None
