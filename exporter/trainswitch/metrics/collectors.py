"""What is collected beside the ring: the cards, the trainer's process, the machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from trainswitch.metrics.gpu.collector import GpuCollector
from trainswitch.metrics.host import HostCollector
from trainswitch.metrics.registry import MetricRegistry

logger = logging.getLogger("trainswitch")


class Collectors:
    """The collectors of one rank."""

    def __init__(self, gpu: GpuCollector, host: HostCollector) -> None:
        self.gpu = gpu
        self.host = host

    def close(self) -> None:
        """Stop collecting; the samples disappear from the endpoint."""
        self.gpu.close()
        self.host.close()


def start_collectors(metrics: MetricRegistry, meta: Mapping[str, Any]) -> Collectors:
    """Begin to collect for the rank that `meta` describes, in the process that serves its endpoint.

    Args:
        metrics: of the rank's endpoint.
        meta: the ring's description; of it pid, local_rank and world_size.
    """
    local_rank = int(meta["local_rank"])
    gpu = GpuCollector(metrics, local_rank=local_rank, local_ranks=_local_ranks(int(meta["world_size"])))
    host = HostCollector(metrics, int(meta["pid"]), first_on_machine=local_rank == 0)
    gpu.start()
    host.start()
    return Collectors(gpu, host)


def _local_ranks(world_size: int) -> int:
    """Return how many ranks the launcher started on this machine; all of them, where it does not say."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text:
        logger.warning("environment variable LOCAL_WORLD_SIZE is %r: set it to a whole number above 0.", text)
    return world_size
