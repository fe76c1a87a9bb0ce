"""Row "Memory": what PyTorch holds of it, and what is taken and never given back."""

from __future__ import annotations

from grafana.builders.common import (
    BARS,
    PanelBuilder,
    color,
    graph,
    increase,
    limit_lines,
    query,
    recorded,
    series,
)
from grafana_foundation_sdk.builders import timeseries

TITLE = "Memory"

_FLOOR = recorded("gpu:train_gpu_memory_used:floor", 'window="2m"')
_HELD = series("train_device_memory_bytes")


def _until_full(title: str, description: str, expr: str, legend: str) -> timeseries.Panel:
    panel = graph(title, description, "s", query("A", expr, legend)).min(0)
    return limit_lines(panel, (None, "red"), (900, "orange"), (3600, "transparent"))


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "PyTorch's memory",
            "What PyTorch's allocator holds of the device at the ends of steps, on the selected rank with "
            "most: in tensors, the most of it, what is reserved, and all there is.",
            "bytes",
            query("A", f"max by (kind) ({_HELD})", "{{kind}}"),
            span=12,
        ).min(0),
        graph(
            "Allocator under pressure",
            "Times that PyTorch's allocator found no room, gave back what it cached and asked again, and "
            "times that this did not help.",
            "none",
            query(
                "A", f"sum by (rank) ({increase('train_cuda_alloc_retries_total')})", "retries, rank {{rank}}"
            ),
            query(
                "B", f"sum by (rank) ({increase('train_cuda_ooms_total')})", "out of memory, rank {{rank}}"
            ),
            span=12,
        )
        .min(0)
        .override_by_query("B", [BARS, color("red")]),
        graph(
            "Least device memory taken",
            "Least that was taken of each card's memory within 2 minutes: it rises only where something is "
            "not given back.",
            "bytes",
            query(
                "A",
                f"max by (rank, gpu, kind) ({_FLOOR})",
                "{{kind}}, rank {{rank}} GPU {{gpu}}",
            ),
        ).min(0),
        _until_full(
            "Device memory full in",
            "Time until a leak has filled a card, where there is one; no line is good news.",
            f"min by (rank, gpu, kind) ({recorded('gpu:train_gpu_memory_full:seconds')})",
            "{{kind}}, rank {{rank}} GPU {{gpu}}",
        ),
        _until_full(
            "Host memory full in",
            "Time until a leak has filled a machine's memory, where there is one; no line is good news.",
            f"min by (rank) ({recorded('rank:train_host_memory_full:seconds')})",
            "machine of rank {{rank}}",
        ),
    ]
