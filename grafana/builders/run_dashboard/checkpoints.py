"""Row "Checkpoints": what a rollback could return to."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, bars, graph, increase, quantile, query, series
from grafana_foundation_sdk.models import common

TITLE = "Checkpoints"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "Newest checkpoints",
            "Step of the newest checkpoint of each kind, beside the run's own step. A stable one has "
            "survived its probation; a rollback returns to it.",
            "none",
            query("A", f"max by (kind) ({series('train_checkpoint_step')})", "{{kind}}"),
            query("B", f"max({series('train_step')})", "run"),
            span=6,
        ).line_interpolation(common.LineInterpolation.STEP_AFTER),
        graph(
            "Age",
            "Time since the newest checkpoint of each kind was written: the work that a rollback or a crash "
            "costs.",
            "s",
            query(
                "A", f"time() - max by (kind) ({series('train_checkpoint_timestamp_seconds')})", "{{kind}}"
            ),
            span=6,
        ).min(0),
        graph(
            "Writing time",
            "Duration of writing a checkpoint, off the training thread.",
            "s",
            query("A", quantile(0.5, "train_checkpoint_seconds"), "median"),
            query("B", quantile(0.95, "train_checkpoint_seconds"), "95 %"),
            span=6,
        ).min(0),
        bars(
            "Failures",
            "Checkpoints that could not be written or read, by reason.",
            "none",
            query("A", f"sum by (reason) ({increase('train_checkpoint_failures_total')})", "{{reason}}"),
            span=6,
        ),
    ]
