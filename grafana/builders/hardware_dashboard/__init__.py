"""The dashboard "trainswitch / Hardware": the GPUs, memories and machines that a run computes on."""

from __future__ import annotations

from grafana.builders.hardware_dashboard import faults, gpus, machines, memory
from grafana.builders.skeleton import assemble
from grafana_foundation_sdk.models import dashboard

UID = "trainswitch-hardware"
ROWS = (gpus, memory, faults, machines)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return assemble(
        UID,
        "Hardware",
        "The GPUs, memories and machines that a run computes on: how busy, how hot, how full, and what "
        "failed.",
        ROWS,
    )
