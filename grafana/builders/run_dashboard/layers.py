"""Row "Layers": which part of the model learns too fast, too slowly, or not at all."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, graph, limit_lines, logarithmic, query, series

TITLE = "Layers"


def _by_layer(metric: str) -> str:
    return f"max by (layer) ({series(metric)})"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        logarithmic(
            graph(
                "Gradient norm by layer",
                "L2 norm of each layer's gradients before clipping, on the selected rank with most. A layer "
                "that sinks by orders of magnitude has stopped to learn; one that climbs explodes first.",
                "none",
                query("A", _by_layer("train_layer_grad_norm"), "{{layer}}"),
                span=12,
            )
        ),
        logarithmic(
            graph(
                "Weight norm by layer",
                "L2 norm of each layer's weights. Norms that only grow say that weight decay is too weak for "
                "the learning rate.",
                "none",
                query("A", _by_layer("train_layer_weight_norm"), "{{layer}}"),
                span=12,
            )
        ),
        limit_lines(
            logarithmic(
                graph(
                    "Update ratio by layer",
                    "How much of its norm a step changes each layer's weights by. About a thousandth is "
                    "usual; a hundredth and more is unstable, a hundred-thousandth learns nothing.",
                    "none",
                    query("A", _by_layer("train_layer_update_ratio"), "{{layer}}"),
                    span=12,
                )
            ),
            (None, "transparent"),
            (0.01, "red"),
        ),
        graph(
            "Inactive share by layer",
            "Share of each layer's activations that pass no gradient on: dead ReLUs, saturated tanh and "
            "sigmoid, the far left of GELU and SiLU.",
            "percentunit",
            query("A", _by_layer("train_layer_inactive_ratio"), "{{layer}}"),
            span=12,
        )
        .min(0)
        .axis_soft_max(1),
    ]
