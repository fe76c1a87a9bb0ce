"""Row "Evaluation": what evaluate() reported."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, graph, query, series

TITLE = "Evaluation"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "Evaluation metrics",
            "Newest value of each metric that was given to evaluate(), as it was given.",
            "none",
            query("A", f"max by (metric) ({series('train_eval')})", "{{metric}}"),
            span=16,
        ),
        graph(
            "Evaluations",
            "Evaluations reported since the trainer started, per metric.",
            "none",
            query("A", f"max by (metric) ({series('train_evals_total')})", "{{metric}}"),
        ).min(0),
    ]
