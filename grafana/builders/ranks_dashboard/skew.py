"""Row "Skew": who learns something else."""

from __future__ import annotations

from grafana.builders.common import (
    PanelBuilder,
    graph,
    instant,
    limit_lines,
    logarithmic,
    number,
    query,
    recorded,
    recorded_for_run,
    series,
)

TITLE = "Skew"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "Loss by rank",
            "Centre line of each rank's loss: a mean over about a hundred steps. Ranks that train on equal "
            "data lie together.",
            "none",
            query("A", series("train_loss_center"), "rank {{rank}}"),
        ),
        limit_lines(
            graph(
                "Distance of the loss",
                "Distance of each rank's centre line from the middle rank's, in sigmas of the loss from "
                "step to step.",
                "suffix: σ",
                query("A", recorded("rank:train_loss_center:distance_sigmas"), "rank {{rank}}"),
            ).min(0),
            (None, "transparent"),
            (1, "orange"),
        ),
        logarithmic(
            graph(
                "Gradient norm by rank",
                "Median gradient norm over each rank's gradient window. Equal on data-parallel ranks; of its "
                "own share where gradients are sharded.",
                "none",
                query("A", series("train_grad_norm_quantile", 'quantile="0.5"'), "rank {{rank}}"),
            )
        ),
        number(
            "Different weights",
            "Different checksums among ranks that were seen after the same step: as many as the model has "
            "parts, which is one where all ranks are replicas.",
            "none",
            instant("A", recorded_for_run("run:train_weight_checksum:distinct"), "different checksums"),
            span=4,
            height=6,
        ).no_value("not compared"),
        graph(
            "Weight checksum by rank",
            "Sum of the weights' bit patterns: lines that lie on each other are replicas. A rank that leaves "
            "its line has weights of its own.",
            "none",
            query("A", series("train_weight_checksum"), "rank {{rank}}"),
            span=10,
            height=6,
        ),
        graph(
            "Step of the checksum",
            "Step after which each rank's checksum was taken; only ranks with the same step can be compared.",
            "none",
            query("A", series("train_weight_checksum_step"), "rank {{rank}}"),
            span=10,
            height=6,
        ),
    ]
