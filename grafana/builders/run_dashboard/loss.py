"""Row "Loss": the control chart, and how the steps lie around its centre line."""

from __future__ import annotations

from grafana.builders.common import (
    BARS,
    DASHED,
    RIGHT_AXIS,
    PanelBuilder,
    buckets,
    color,
    graph,
    increase,
    limit_lines,
    query,
    series,
    share_above,
    unit,
)

TITLE = "Loss"

_CENTER = series("train_loss_center")
_SIGMA = series("train_loss_sigma")
_BELOW = series("train_step_loss_deviation_sigmas_bucket", 'le="-3.0"')
_COUNT = series("train_step_loss_deviation_sigmas_count")


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "Loss and control limits",
            "Loss of the newest step with the centre line of its control chart and the limits at 3 and 6 "
            "sigma. Spikes and NaN do not move the centre line. A gap means that the newest loss was NaN.",
            "none",
            query("A", series("train_loss"), "loss, rank {{rank}}"),
            query("B", _CENTER, "centre line"),
            query("C", f"{_CENTER} + 3 * {_SIGMA}", "+3 sigma"),
            query("D", f"{_CENTER} - 3 * {_SIGMA}", "−3 sigma"),
            query("E", f"{_CENTER} + 6 * {_SIGMA}", "+6 sigma"),
            query("F", f"{_CENTER} - 6 * {_SIGMA}", "−6 sigma"),
            query("G", series("train_limit", 'signal="loss"'), "{{bound}} limit, {{severity}}"),
            span=16,
            height=10,
        )
        .override_by_query("B", [color("green")])
        .override_by_query("C", [color("orange"), DASHED])
        .override_by_query("D", [color("orange"), DASHED])
        .override_by_query("E", [color("red"), DASHED])
        .override_by_query("F", [color("red"), DASHED])
        .override_by_query("G", [color("dark-red")]),
        limit_lines(
            graph(
                "Chart statistic",
                "EWMA of the deviations over its own standard deviation: a lasting shift of the loss drives "
                "it past ±3 long before single steps stand out. Bars: times the chart moved its centre line "
                "to a new level.",
                "suffix: σ",
                query("A", series("train_loss_chart"), "rank {{rank}}"),
                query("B", f"sum({increase('train_loss_recenters_total')})", "re-centred"),
                height=10,
            ).override_by_query("B", [BARS, RIGHT_AXIS, unit("none"), color("purple")]),
            (None, "red"),
            (-3, "transparent"),
            (3, "red"),
        ),
        buckets(
            "Deviation of each step",
            "Signed deviation of every step's loss from the centre line, in sigmas; counts every step, also "
            "those between two scrapes.",
            "suffix: σ",
            "train_step_loss_deviation_sigmas",
        ),
        graph(
            "Steps outside the limits",
            "Share of the steps whose loss lay outside a limit. Healthy runs leave +6 sigma about once in a "
            "thousand steps, and for one step at a time.",
            "percentunit",
            query(
                "A", share_above("train_step_loss_deviation_sigmas", "3.0"), "above +3 sigma, rank {{rank}}"
            ),
            query(
                "B", share_above("train_step_loss_deviation_sigmas", "6.0"), "above +6 sigma, rank {{rank}}"
            ),
            query(
                "C",
                f"sum by (rank) (increase({_BELOW}[$__rate_interval])) "
                f"/ (sum by (rank) (increase({_COUNT}[$__rate_interval])) > 0)",
                "below −3 sigma, rank {{rank}}",
            ),
        ).min(0),
        graph(
            "Trend",
            "Slope of the loss over the trend window, in loss per step, with two standard errors either "
            "side: clearly above zero, the loss is rising.",
            "sci",
            query("A", series("train_loss_slope"), "slope, rank {{rank}}"),
            query(
                "B", f"{series('train_loss_slope')} + 2 * {series('train_loss_slope_stderr')}", "+2 errors"
            ),
            query(
                "C", f"{series('train_loss_slope')} - 2 * {series('train_loss_slope_stderr')}", "−2 errors"
            ),
        )
        .override_by_query("B", [color("gray"), DASHED])
        .override_by_query("C", [color("gray"), DASHED]),
    ]
