"""The dashboard "trainswitch / Run": one training run, from its loss to the commands that changed it."""

from __future__ import annotations

import itertools

from grafana.builders.common import AnnotationBuilder, datasource_variable, label_variable
from grafana.builders.run_dashboard import (
    checkpoints,
    control,
    evaluation,
    gradients,
    itself,
    loss,
    numerics,
    overview,
    time,
)
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.models import dashboard

UID = "trainswitch-run"
ROWS = (overview, loss, gradients, numerics, time, evaluation, checkpoints, control, itself)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    builder = (
        dashboard_builders.Dashboard("trainswitch / Run")
        .uid(UID)
        .description(
            "One training run: its health, its statistics over steps, and every command that changed it."
        )
        .tags(["trainswitch"])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.TOOLTIP)
        .time("now-30m", "now")
        .refresh("5s")
        .timezone("browser")
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
    for row in ROWS:
        builder.with_row(dashboard_builders.Row(row.TITLE).id(next(number)))
        for panel in row.panels():
            builder.with_panel(panel.id(next(number)))
    return builder.build()
