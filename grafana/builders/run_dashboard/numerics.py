"""Row "Numerics and schedule": non-finite values, skipped and clipped steps, and the learning rate."""

from __future__ import annotations

from grafana.builders.common import RIGHT_AXIS, PanelBuilder, bars, graph, increase, query, rate, series, unit
from grafana_foundation_sdk.models import common

TITLE = "Numerics and schedule"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        bars(
            "Non-finite values",
            "Steps whose loss or gradient norm was NaN or infinite; one is one too many.",
            "none",
            query("A", f"sum by (source) ({increase('train_nonfinite_total')})", "{{source}}"),
        ),
        bars(
            "Skipped steps",
            "Steps whose update did not reach the weights, by reason.",
            "none",
            query("A", f"sum by (reason) ({increase('train_skipped_steps_total')})", "{{reason}}"),
        ),
        graph(
            "Clipping and loss scale",
            "Share of the steps whose gradients clip_grad_norm_() scaled down, and the loss scale of "
            "automatic mixed precision where the loop gives it (right axis). Nearly every step clipped: the "
            "limit sets the learning rate.",
            "percentunit",
            query(
                "A",
                f"sum by (rank) ({rate('train_grad_clips_total')}) "
                f"/ (sum by (rank) ({rate('train_steps_total')}) > 0)",
                "clipped, rank {{rank}}",
            ),
            query("B", series("train_loss_scale"), "loss scale, rank {{rank}}"),
        )
        .min(0)
        .override_by_query("B", [RIGHT_AXIS, unit("none")]),
        graph(
            "Learning rate",
            "Learning rate that the newest step used, per parameter group; a step down shows an "
            "intervention.",
            "sci",
            query("A", f"max by (group) ({series('train_learning_rate')})", "group {{group}}"),
            span=24,
            height=6,
        ).line_interpolation(common.LineInterpolation.STEP_AFTER),
    ]
