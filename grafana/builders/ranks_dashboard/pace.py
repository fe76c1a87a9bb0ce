"""Row "Pace": who holds the others up."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, graph, limit_lines, mean, query, recorded

TITLE = "Pace"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "Step time by rank",
            "Mean duration of a step. Ranks wait for each other, so all are as slow as the slowest.",
            "s",
            query("A", mean("train_step_seconds", "rank"), "rank {{rank}}"),
        ).min(0),
        graph(
            "Own time by rank",
            "Mean step time without collective operations, over 10 minutes: the rank with most of it is the"
            " one that the others wait for. Only where the host waits for these operations.",
            "s",
            query("A", recorded("rank:train_step_own_seconds:mean10m"), "rank {{rank}}"),
        ).min(0),
        graph(
            "Data wait by rank",
            "Mean wait of a step for its batch.",
            "s",
            query("A", mean("train_data_wait_seconds", "rank"), "rank {{rank}}"),
        ).min(0),
        limit_lines(
            graph(
                "Stragglers",
                "What a rank costs the others, as a share of a step, by the sign that tells it: own time, "
                "data wait, or the clock of its GPU. Only ranks with more than 5 %.",
                "percentunit",
                query(
                    "A",
                    f"{recorded('rank:train_straggler:excess_ratio')} > 0.05",
                    "rank {{rank}} by {{sign}}",
                ),
                span=24,
                height=7,
            ).min(0),
            (None, "transparent"),
            (0.2, "orange"),
        ),
    ]
