"""The dashboard "trainswitch / Run": one training run, from its loss to the commands that changed it."""

from __future__ import annotations

from grafana.builders.run_dashboard import (
    checkpoints,
    control,
    evaluation,
    gradients,
    itself,
    layers,
    limits,
    loss,
    numerics,
    overview,
    time,
)
from grafana.builders.skeleton import assemble
from grafana_foundation_sdk.models import dashboard

UID = "trainswitch-run"
ROWS = (
    overview,
    loss,
    gradients,
    layers,
    numerics,
    limits,
    time,
    evaluation,
    checkpoints,
    control,
    itself,
)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return assemble(
        UID,
        "Run",
        "One training run: its health, its statistics over steps, and every command that changed it.",
        ROWS,
    )
