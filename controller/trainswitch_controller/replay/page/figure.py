"""The plot of one run: loss and gradient norm, the episodes behind them, and what the policy did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.model import Intervention, ReplayedRun
from trainswitch_controller.replay.page.downsample import envelope
from trainswitch_controller.replay.page.signals import Line, Panel, panels

PLOTLY_IS_MISSING = (
    "the page needs the package plotly, which is not installed: run pip install 'trainswitch[replay]'."
)

HEIGHT = 600
"""Of a plot, in pixels."""

STRETCHES = 400
"""Into how many stretches a line is divided: about as many as a screen shows apart."""

COLOURS = {"critical": "#d1242f", "warning": "#e8a317", "info": "#2f81f7"}
_OTHER_COLOUR = "#6e7781"
_INTERVENTION = "#8250df"
_LINES: dict[str, dict[str, Any]] = {
    "value": {"mode": "lines", "line": {"width": 1.2, "color": "#24292f"}},
    "evaluation": {"mode": "lines+markers", "line": {"width": 1, "color": "#0969da"}, "marker": {"size": 5}},
    "center": {"mode": "lines", "line": {"width": 1, "color": "#1a7f37"}},
    "limit": {"mode": "lines", "line": {"width": 1, "color": "#d1242f", "dash": "dot"}},
}
_LOG_SCALE_FROM = 50.0
"""Largest over smallest value of a signal above which its axis is logarithmic."""
_DIGITS = 5
_HEIGHTS = (1.0, 0.75)
_STRIP_HEIGHT = 0.45
_WHOLE_HEIGHT = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}


def figure(run: ReplayedRun) -> str:
    """Return the plot as JSON for plotly.js.

    Raises:
        ReplayError: the package plotly is not installed.
    """
    try:
        from plotly.graph_objects import Figure
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise ReplayError(PLOTLY_IS_MISSING) from error
    shown = panels(run)
    strip = bool(run.episodes)
    plot: Figure = make_subplots(
        rows=len(shown) + strip,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.03,
        row_heights=[*_HEIGHTS[: len(shown)], *[_STRIP_HEIGHT] * strip],
    )
    for number, panel in enumerate(shown, 1):
        _add_panel(plot, number, panel)
    if strip:
        _add_episodes(plot, len(shown) + 1, run)
        _add_interventions(plot, len(shown) + 1, run)
    # All at once: plotly copies the shapes that there are with each one that is added.
    plot.update_layout(shapes=[*_shades(run), *_marks(run)])
    plot.update_xaxes(title_text="row of the log", row=len(shown) + strip, col=1)
    plot.update_layout(
        template=None,
        height=HEIGHT,
        margin={"l": 70, "r": 20, "t": 80, "b": 40},
        hovermode="x",
        barmode="overlay",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01},
        font={"size": 11},
    )
    text: str = plot.to_json()
    return text


def _add_panel(plot: Any, number: int, panel: Panel) -> None:
    signal, *_ = panel.lines
    for line in panel.lines:
        _add_line(plot, number, line)
    finite = [value for value in signal.values if value is not None and math.isfinite(value)]
    lost = [
        row
        for row, value in zip(signal.rows, signal.values, strict=True)
        if value is not None and not math.isfinite(value)
    ]
    if lost:
        top = max(finite, default=1.0)
        rows, heights = envelope(lost, [top] * len(lost), STRETCHES)
        plot.add_scatter(
            x=rows,
            y=heights,
            mode="markers",
            name=f"{panel.title} not finite",
            marker={"symbol": "x", "size": 8, "color": COLOURS["critical"]},
            hoverinfo="x+name",
            row=number,
            col=1,
        )
    wide = bool(finite) and min(finite) > 0.0 and max(finite) > _LOG_SCALE_FROM * min(finite)
    plot.update_yaxes(title_text=panel.title, type="log" if wide else "linear", row=number, col=1)


def _add_line(plot: Any, number: int, line: Line) -> None:
    rows, values = envelope(line.rows, line.values, STRETCHES)
    if values:
        plot.add_scatter(
            x=rows,
            y=[float(f"{value:.{_DIGITS}g}") for value in values],
            name=line.name,
            row=number,
            col=1,
            **_LINES[line.kind],
        )


def _add_episodes(plot: Any, number: int, run: ReplayedRun) -> None:
    """Name the episodes in a strip of their own below the signals."""
    for severity in sorted({episode.severity for episode in run.episodes}, key=_critical_last):
        episodes = [episode for episode in run.episodes if episode.severity == severity]
        plot.add_bar(
            base=[episode.start_row - 0.5 for episode in episodes],
            x=[episode.end_row - episode.start_row + 1 for episode in episodes],
            y=[episode.alert for episode in episodes],
            orientation="h",
            name=severity or "no severity",
            marker={"color": COLOURS.get(severity, _OTHER_COLOUR), "line": {"width": 0}},
            hovertext=[
                f"{episode.alert} ({episode.severity}), rows {episode.start_row} to {episode.end_row}"
                + (f", value {episode.value:.4g}" if episode.value is not None else "")
                for episode in episodes
            ],
            hoverinfo="text",
            row=number,
            col=1,
        )
    plot.update_yaxes(type="category", automargin=True, row=number, col=1)


def _critical_last(severity: str) -> int:
    """Order severities so that the worst is drawn over the others."""
    return -list(COLOURS).index(severity) if severity in COLOURS else -len(COLOURS)


def _add_interventions(plot: Any, number: int, run: ReplayedRun) -> None:
    commanded = [one for one in run.interventions if one.action is not None]
    if not commanded:
        return
    plot.add_scatter(
        x=[one.row for one in commanded],
        y=["policy"] * len(commanded),
        mode="markers",
        name="policy",
        marker={"symbol": "triangle-down", "size": 10, "color": _INTERVENTION},
        hovertext=[describe(one) for one in commanded],
        hoverinfo="text",
        row=number,
        col=1,
    )


def _shades(run: ReplayedRun) -> Iterator[dict[str, Any]]:
    """Yield what lies behind the rows of each episode."""
    for episode in run.episodes:
        yield {
            **_WHOLE_HEIGHT,
            "type": "rect",
            "x0": episode.start_row - 0.5,
            "x1": episode.end_row + 0.5,
            "fillcolor": COLOURS.get(episode.severity, _OTHER_COLOUR),
            "opacity": 0.18,
            "line": {"width": 0},
            "layer": "below",
        }


def _marks(run: ReplayedRun) -> Iterator[dict[str, Any]]:
    """Yield a line for each intervention."""
    for one in run.interventions:
        if one.action is not None:
            line = {"color": _INTERVENTION, "width": 1, "dash": "dash"}
            yield {**_WHOLE_HEIGHT, "type": "line", "x0": one.row, "x1": one.row, "line": line}


def describe(intervention: Intervention) -> str:
    """Return an intervention as a few words: what, on which alert, and what became of it."""
    params = ", ".join(f"{name} {value}" for name, value in intervention.params.items())
    action = f"{intervention.action} ({params})" if params else str(intervention.action)
    return f"{action} for {intervention.alert}: {intervention.outcome}"
