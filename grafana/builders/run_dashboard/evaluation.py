"""Row "Evaluation": what evaluate() reported, and whether the newest values are worse by more than chance."""

from __future__ import annotations

from grafana.builders.common import DASHED, PanelBuilder, bars, color, graph, increase, query, series

TITLE = "Evaluation"


def _window(window: str, stat: str) -> str:
    selector = series("train_eval_window", f'window="{window}"', f'stat="{stat}"')
    return f"max by (metric) ({selector})"


_REFERENCE_ERROR = f"sqrt({_window('reference', 'variance')} / {_window('reference', 'count')})"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "Evaluation metrics",
            "Newest value of each metric that was given to evaluate(), and its best so far (dashed).",
            "none",
            query("A", f"max by (metric) ({series('train_eval')})", "{{metric}}"),
            query("B", f"max by (metric) ({series('train_eval_best')})", "best {{metric}}"),
        ).override_by_query("B", [DASHED]),
        graph(
            "Recent against reference",
            "Mean of the newest evaluations against the mean of those before them, with two standard errors "
            "of the latter either side (dashed): outside, the metric has changed by more than chance.",
            "none",
            query("A", _window("recent", "mean"), "recent {{metric}}"),
            query("B", _window("reference", "mean"), "reference {{metric}}"),
            query("C", f"{_window('reference', 'mean')} + 2 * {_REFERENCE_ERROR}", "{{metric}}, +2 errors"),
            query("D", f"{_window('reference', 'mean')} - 2 * {_REFERENCE_ERROR}", "{{metric}}, −2 errors"),
        )
        .override_by_query("B", [color("gray")])
        .override_by_query("C", [color("gray"), DASHED])
        .override_by_query("D", [color("gray"), DASHED]),
        bars(
            "Evaluations",
            "Evaluations reported, per metric, and those whose value was NaN or infinite.",
            "none",
            query("A", f"max by (metric) ({increase('train_evals_total')})", "{{metric}}"),
            query(
                "B",
                f"max by (metric) ({increase('train_eval_nonfinite_total')})",
                "not finite: {{metric}}",
            ),
        ).override_by_query("B", [color("red")]),
    ]
