"""Endpoint: what Prometheus sees of one rank, from its registration to its withdrawal."""

from __future__ import annotations

import logging

from trainswitch.config import MonitorConfig
from trainswitch.errors import ServerError
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.metrics.discovery import TargetRegistration
from trainswitch.metrics.server import ScrapeServer
from trainswitch.recording.ring import RingReader

logger = logging.getLogger("trainswitch")


class Endpoint:
    """Aggregator, HTTP server and registration; needs nothing of the trainer but its ring."""

    def __init__(self, reader: RingReader, local_rank: int, version: str) -> None:
        """Bind the port; nothing is served yet.

        Raises:
            ServerError: the token or the certificate cannot be used. A port that cannot be had is logged
                instead: training goes on without being scraped, rather than in the open.
        """
        config = MonitorConfig.model_validate(reader.meta["config"])
        self._config = config.server
        self.aggregator = Aggregator(reader, version)
        self._server: ScrapeServer | None = None
        try:
            self._server = ScrapeServer(config.server, local_rank, self.aggregator.render)
        except ServerError as error:
            if config.server.protected:
                raise
            logger.warning("%s Training goes on without being scraped.", error)
        self._registration = TargetRegistration(
            config.server.targets_dir,
            run=reader.meta["run"],
            rank=reader.meta["rank"],
            node=reader.meta["node"],
        )

    @property
    def url(self) -> str | None:
        """Where the samples are served; None where no port could be had."""
        return f"{self._server.scheme}://{self._server.authority}/metrics" if self._server else None

    def start(self) -> None:
        """Aggregate, serve and register."""
        self.aggregator.start()
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

    def close(self) -> None:
        """Let the final samples be scraped, withdraw, and stop serving."""
        self.aggregator.drain()
        if self._server is not None:
            self._server.linger(self._config.linger_seconds)
            try:
                self._registration.withdraw()
            except OSError as error:
                logger.warning("cannot withdraw %s: %s.", self._registration.path, error.strerror or error)
            self._server.close()
        self.aggregator.close()
