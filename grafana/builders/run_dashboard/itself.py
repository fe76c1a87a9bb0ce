"""Row "trainswitch itself": what watching costs, and what is running."""

from __future__ import annotations

from grafana.builders.common import (
    PanelBuilder,
    bars,
    graph,
    increase,
    instant,
    limit_lines,
    number,
    query,
    rate,
    series,
)
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.models import common

TITLE = "trainswitch itself"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        limit_lines(
            graph(
                "Overhead",
                "Share of the wall-clock time that trainswitch spends: in the training loop (step), in the "
                "thread that computes the statistics (aggregate), and in answering scrapes (render).",
                "percentunit",
                query("A", f"max by (where) ({rate('trainswitch_overhead_seconds_total')})", "{{where}}"),
            ).min(0),
            (None, "transparent"),
            (0.01, "red"),
        ),
        bars(
            "Dropped records",
            "Steps that were overwritten before the statistics saw them; should stay at zero.",
            "none",
            query("A", f"sum by (rank) ({increase('trainswitch_records_dropped_total')})", "rank {{rank}}"),
            span=5,
        ),
        graph(
            "Scrape duration",
            "How long Prometheus waited for the trainer's endpoint.",
            "s",
            query("A", series("scrape_duration_seconds"), "rank {{rank}}"),
            span=5,
        ).min(0),
        number(
            "Builds and configuration",
            "Versions of the trainer's and the controller's trainswitch, and the SHA-256 of the monitor's "
            "configuration.",
            "none",
            instant(
                "A",
                f"count by (version, python) ({series('trainswitch_build_info')})",
                "trainer {{version}}, Python {{python}}",
            ),
            instant("B", "count by (version) (trainswitch_controller_build_info)", "controller {{version}}"),
            instant("C", f"count by (sha256) ({series('train_config_info')})", "configuration {{sha256}}"),
            span=6,
            height=8,
        )
        .text_mode(common.BigValueTextMode.NAME)
        .text(common_builders.VizTextDisplayOptions().title_size(12).value_size(12)),
    ]
