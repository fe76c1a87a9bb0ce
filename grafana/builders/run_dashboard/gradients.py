"""Row "Gradients": the norm before clipping against its own recent past and its limit."""

from __future__ import annotations

from grafana.builders.common import (
    DASHED,
    PanelBuilder,
    buckets,
    color,
    graph,
    logarithmic,
    query,
    series,
    share_above,
)
from grafana_foundation_sdk.models import dashboard

TITLE = "Gradients"

_FILL_TO_LOWER = dashboard.DynamicConfigValue(id_val="custom.fillBelowTo", value="lower quartile")
_FILL = dashboard.DynamicConfigValue(id_val="custom.fillOpacity", value=15)


def _quantile(q: str) -> str:
    selector = series("train_grad_norm_quantile", f'quantile="{q}"')
    return f"max({selector})"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        logarithmic(
            graph(
                "Gradient norm",
                "Global L2 norm of the newest step before clipping, over the quartiles of the gradient "
                "window, with the configured limits. A gap means that the newest norm was NaN.",
                "none",
                query("A", series("train_grad_norm"), "norm, rank {{rank}}"),
                query("B", _quantile("0.25"), "lower quartile"),
                query("C", _quantile("0.75"), "upper quartile"),
                query("D", _quantile("0.5"), "median"),
                query("E", series("train_limit", 'signal="grad_norm"'), "{{bound}} limit, {{severity}}"),
            )
        )
        .override_by_query("B", [color("super-light-blue")])
        .override_by_query("C", [color("super-light-blue"), _FILL_TO_LOWER, _FILL])
        .override_by_query("D", [color("blue")])
        .override_by_query("E", [color("red"), DASHED]),
        graph(
            "Steps far above the trailing median",
            "Share of the steps whose gradient norm was a multiple of its trailing median. Healthy runs "
            "exceed 3, 5 and 10 times about 2.1, 0.21 and 0.016 times in a thousand steps.",
            "percentunit",
            query("A", share_above("train_step_grad_norm_ratio", "3.0"), "above 3 times, rank {{rank}}"),
            query("B", share_above("train_step_grad_norm_ratio", "5.0"), "above 5 times, rank {{rank}}"),
            query("C", share_above("train_step_grad_norm_ratio", "10.0"), "above 10 times, rank {{rank}}"),
        ).min(0),
        buckets(
            "Gradient norm of each step",
            "Norm before clipping of every step, also those between two scrapes.",
            "none",
            "train_step_grad_norm",
        ),
    ]
