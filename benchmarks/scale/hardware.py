"""What the collectors of a rank on a healthy eight-card machine read, for machines that have no card."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping

from trainswitch.metrics.catalogue import CATALOGUE, Metric
from trainswitch.metrics.gpu.collector import XIDS
from trainswitch.metrics.registry import Reading

_GIB = 1024.0**3
_KNOWN_LATE: dict[str, tuple[str, ...]] = {
    "name": ("NVIDIA H100 80GB HBM3",),
    "driver": ("550.54.15",),
    "xid": tuple(map(str, XIDS)),
}
"""Values of the labels that the catalogue does not know in advance, except those of the card itself."""
_HEALTHY = {
    "train_gpu_info": 1.0,
    "train_gpu_up": 1.0,
    "train_gpu_utilization_ratio": 0.97,
    "train_gpu_memory_controller_utilization_ratio": 0.55,
    "train_gpu_memory_bytes": 80 * _GIB,
    "train_gpu_temperature_celsius": 61.0,
    "train_gpu_power_watts": 640.0,
    "train_gpu_power_limit_watts": 700.0,
    "train_gpu_clock_hertz": 1.98e9,
    "train_gpu_collect_success": 1.0,
    "train_gpu_collect_seconds": 0.004,
    "train_process_resident_memory_bytes": 9 * _GIB,
    "train_process_open_fds": 210.0,
    "train_process_threads": 96.0,
    "train_host_memory_bytes": 2048 * _GIB,
    "train_host_load_ratio": 0.3,
}
"""What is not zero."""
_SHARES = {"used": 0.8, "available": 0.7}
"""Of what `_HEALTHY` says, by kind."""
_OF_THE_MACHINE = "train_host_"
_HEARD_OF = "train_gpu_xid_timestamp_seconds"
"""Absent until an XID error occurs."""


def readings(local_rank: int, uuid: str) -> Iterator[Reading]:
    """Yield what the collectors of a rank would read now, with every label that they would give.

    Args:
        local_rank: of the rank on its machine, and the number of its card.
        uuid: of that card.
    """
    now = time.time()
    moving = {
        "train_gpu_collect_timestamp_seconds": now,
        "train_gpu_energy_joules_total": 640.0 * now % 1e12,
        "train_process_cpu_seconds_total": 3.0 * now % 1e9,
    }
    for metric in CATALOGUE:
        if not metric.collected or metric.name == _HEARD_OF:
            continue
        if metric.name.startswith(_OF_THE_MACHINE) and local_rank != 0:
            continue
        value = moving.get(metric.name, _HEALTHY.get(metric.name, 0.0))
        for labels in _labels(metric, {**_KNOWN_LATE, "gpu": (str(local_rank),), "uuid": (uuid,)}):
            yield Reading(metric.name, labels, value * _SHARES.get(labels[-1] if labels else "", 1.0))


def _labels(metric: Metric, late: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    return itertools.product(*(known or late[name] for name, known in metric.labels))
