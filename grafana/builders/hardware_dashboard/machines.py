"""Row "Machines and processes": what the operating system says of them."""

from __future__ import annotations

from grafana.builders.common import DASHED, PanelBuilder, graph, limit_lines, query, rate, series

TITLE = "Machines and processes"

_RANK = "rank {{rank}}"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    available = series("train_host_memory_bytes", 'kind="available"')
    total = series("train_host_memory_bytes", 'kind="total"')
    return [
        limit_lines(
            graph(
                "Host memory",
                "Share of each machine's memory that is taken; what the kernel can take back from its "
                "caches is free.",
                "percentunit",
                query(
                    "A",
                    f"1 - max by (rank) ({available}) / max by (rank) ({total})",
                    "machine of rank {{rank}}",
                ),
            )
            .min(0)
            .axis_soft_max(1),
            (None, "transparent"),
            (0.9, "orange"),
            (0.97, "red"),
        ),
        graph(
            "Resident memory",
            "Memory of each trainer's process, without its data workers.",
            "bytes",
            query("A", f"max by (rank) ({series('train_process_resident_memory_bytes')})", _RANK),
        ).min(0),
        graph(
            "Processors",
            "Load per CPU of each machine (dashed: above 1 something waits), and CPUs that each trainer "
            "uses.",
            "none",
            query(
                "A", f"max by (rank) ({series('train_host_load_ratio')})", "load, machine of rank {{rank}}"
            ),
            query("B", f"max by (rank) ({rate('train_process_cpu_seconds_total')})", "CPUs of rank {{rank}}"),
        )
        .min(0)
        .override_by_query("A", [DASHED]),
        graph(
            "Open files",
            "Open file descriptors of each trainer's process; a steady climb ends at the limit of the "
            "system.",
            "none",
            query("A", f"max by (rank) ({series('train_process_open_fds')})", _RANK),
            span=12,
        ).min(0),
        graph(
            "Threads",
            "Threads of each trainer's process.",
            "none",
            query("A", f"max by (rank) ({series('train_process_threads')})", _RANK),
            span=12,
        ).min(0),
    ]
