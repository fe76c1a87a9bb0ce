"""The dashboard "trainswitch / Ranks": the ranks of a run against each other."""

from __future__ import annotations

from grafana.builders.ranks_dashboard import collectives, pace, presence, skew
from grafana.builders.skeleton import assemble
from grafana_foundation_sdk.models import dashboard

UID = "trainswitch-ranks"
ROWS = (presence, pace, collectives, skew)


def build() -> dashboard.Dashboard:
    """Return the dashboard."""
    return assemble(
        UID,
        "Ranks",
        "The ranks of a run against each other: who holds the others up, who learns something else, who is "
        "gone.",
        ROWS,
    )
