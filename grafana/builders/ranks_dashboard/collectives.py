"""Row "Collectives": the operations in which ranks wait for each other."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, graph, query, rate, series, timeline

TITLE = "Collective operations"

_WAITING = series("train_collective_waiting_since_timestamp_seconds")


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    steps = f"sum by (rank) ({rate('train_steps_total')}) > 0"
    return [
        graph(
            "Collective time by rank",
            "Time of a step in collective operations that the host waits for. The straggler has least.",
            "s",
            query(
                "A", f"sum by (rank) ({rate('train_collective_seconds_sum')}) / ({steps})", "rank {{rank}}"
            ),
        ).min(0),
        graph(
            "Collective time by operation",
            "Mean duration of each operation, from its issue until the host's wait for it returned.",
            "s",
            query(
                "A",
                f"sum by (op) ({rate('train_collective_seconds_sum')}) "
                f"/ (sum by (op) ({rate('train_collective_seconds_count')}) > 0)",
                "{{op}}",
            ),
        ).min(0),
        graph(
            "Operations per step",
            "Collective operations that the host waited for, per step and kind, over the selected ranks.",
            "none",
            query(
                "A",
                f"sum by (op) ({rate('train_collective_seconds_count')}) "
                f"/ scalar(sum({rate('train_steps_total')}) > 0) > 0",
                "{{op}}",
            ),
        ).min(0),
        timeline(
            "Waiting",
            "Ranks that have waited in an operation for more than a second; the rank without a bar is the "
            "one that the others wait for.",
            query(
                "A",
                f"max by (rank, op) ({_WAITING}) > bool 0 == 1",
                "rank {{rank}} in {{op}}",
            ),
        ),
        graph(
            "Longest wait",
            "How long each waiting rank has been in its operation.",
            "s",
            query(
                "A",
                f"time() - max by (rank, op) ({_WAITING} > 0)",
                "rank {{rank}} in {{op}}",
            ),
            span=12,
            height=6,
        ).min(0),
    ]
