"""Row "Limits": what the run is judged by now, and why."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, graph, instant, number, query, series, timeline
from grafana_foundation_sdk.builders import common as common_builders

TITLE = "Limits"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        timeline(
            "Phase of training",
            "The phase that the step is in, as configured; each may have limits of its own.",
            query("A", f"max by (phase) ({series('train_phase')}) == 1", "{{phase}}"),
            span=8,
        ),
        timeline(
            "Limits in force",
            "Which configured limits hold, with the phase they belong to and the reason that was given.",
            query(
                "A",
                f"max by (signal, bound, severity, phase, reason) ({series('train_limit_info')}) == 1",
                "{{signal}} {{bound}} {{severity}} {{phase}} {{reason}}",
            ),
            span=8,
        ),
        graph(
            "Configured limits",
            "Value of each absolute limit that is in force.",
            "none",
            query(
                "A",
                f"max by (signal, bound, severity) ({series('train_limit')})",
                "{{signal}} {{bound}}, {{severity}}",
            ),
            height=6,
        ),
        number(
            "Baseline",
            "Median over the warm-up of each signal, frozen when it ended, and what the configuration "
            "expects: relative limits are measured from here.",
            "none",
            instant("A", f"max by (signal, stat) ({series('train_baseline')})", "{{signal}} {{stat}}"),
            span=24,
        ).text(common_builders.VizTextDisplayOptions().title_size(12).value_size(18)),
    ]
