"""What surrounds the panels of every dashboard: variables, annotations, links, and the panels' numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

from grafana.builders.common import AnnotationBuilder, PanelBuilder, datasource_variable, label_variable
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models import dashboard

TAG = "trainswitch"


class Row(Protocol):
    """A module that builds one row."""

    @property
    def TITLE(self) -> str:  # noqa: N802 - a constant of the module
        """What the row is called."""

    def panels(self) -> list[PanelBuilder]:
        """Return the row's panels, in reading order."""


def assemble(uid: str, title: str, description: str, rows: Sequence[Row]) -> dashboard.Dashboard:
    """Return the dashboard of one run that consists of `rows`.

    Args:
        uid: its address, and the name of its file.
        title: what follows "trainswitch / ".
        description: one sentence.
        rows: from top to bottom.
    """
    builder = (
        dashboard_builders.Dashboard(f"trainswitch / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.TOOLTIP)
        .time("now-30m", "now")
        .refresh("5s")
        .timezone("browser")
        .links([_links()])
        .variables(
            [
                datasource_variable(),
                label_variable(
                    "job", "Job", "train_run_state", description="Scrape job of the trainers.", many=True
                ),
                label_variable(
                    "run", "Run", 'train_run_state{job=~"$job"}', description="Name of the run.", many=False
                ),
                label_variable(
                    "rank",
                    "Rank",
                    'train_run_state{job=~"$job", run="$run"}',
                    description="Ranks to show; rank 0 measures everything.",
                    many=True,
                ),
            ]
        )
        .annotations(
            [
                AnnotationBuilder(
                    "Commands",
                    'trainswitch_controller_command_timestamp_seconds{run="$run"} * 1000',
                    color="blue",
                    title="{{action}}",
                    tags="action",
                    value_is_time=True,
                ),
                AnnotationBuilder(
                    "Alerts",
                    'ALERTS{alertstate="firing", run="$run"}',
                    color="red",
                    title="{{alertname}}",
                    tags="severity",
                ),
            ]
        )
    )
    # Links to a panel name its number; numbering here keeps them free of Grafana's own choice.
    number = itertools.count(1)
    for row in rows:
        builder.with_row(dashboard_builders.Row(row.TITLE).id(next(number)))
        for panel in row.panels():
            builder.with_panel(panel.id(next(number)))
    return builder.build()


def _links() -> dashboard_builders.DashboardLink:
    """Return the links to the other dashboards, for the same run and time."""
    return (
        dashboard_builders.DashboardLink("trainswitch")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )
