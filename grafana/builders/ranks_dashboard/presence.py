"""Row "Presence": which ranks are there, and how far they are."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, graph, instant, number, query, series, steps, timeline

TITLE = "Presence"

_BEHIND = f"scalar(max({series('train_step')})) - max by (rank) ({series('train_step')})"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        number(
            "Ranks reached",
            "Ranks that Prometheus reaches now, those that have a target, and those that the run has.",
            "none",
            instant("A", f"sum({series('up')})", "reached"),
            instant("B", f"count({series('up')})", "have a target"),
            instant("C", f"max({series('train_world_size')})", "of the run"),
            span=6,
            height=6,
        ),
        number(
            "Steps behind",
            "Steps between the foremost and the hindmost of the selected ranks; scrapes are not "
            "simultaneous, so a few are no trouble.",
            "none",
            instant("A", f"max({series('train_step')}) - min({series('train_step')})"),
            height=6,
        ),
        number(
            "Longest without a step",
            "Time since the last step ended, for the rank that is furthest behind.",
            "s",
            instant("A", f"time() - min({series('train_last_step_timestamp_seconds')})"),
            height=6,
        ).thresholds(steps((None, "green"), (30, "orange"), (120, "red"))),
        timeline(
            "States by rank",
            "What each of the selected ranks says it is doing.",
            query(
                "A", f"max by (rank, state) ({series('train_run_state')}) == 1", "rank {{rank}}: {{state}}"
            ),
        ),
        graph(
            "Behind the foremost rank",
            "Steps by which each rank is behind the foremost. All ranks that stop at one step wait for one "
            "that does not reach it.",
            "none",
            query("A", _BEHIND, "rank {{rank}}"),
            span=24,
            height=6,
        ).min(0),
    ]
