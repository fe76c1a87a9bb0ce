"""What a plot shows of a run besides its log: the lines that its rules judge by, from the replay's traces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from trainswitch_controller.replay.model import ReplayedRun, Row, Trace

CENTER, SIGMA, MEDIAN = "train_loss_center", "train_loss_sigma", "train_grad_norm_quantile{0.5}"
CONTROL_SIGMAS = 3.0
"""Distance of the control limits that are drawn, as in the TensorBoard files and on the dashboard."""
RATIO = 10.0
"""Multiple of the median gradient norm that is drawn."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel."""

    name: str
    rows: tuple[int, ...]
    values: tuple[float | None, ...]
    kind: str
    """``value``, ``evaluation``, ``center`` or ``limit``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """One signal of a run with what it is compared with; its first line is the signal itself."""

    title: str
    lines: tuple[Line, ...]


def _limit(signal: str, severity: str) -> str:
    return f"train_limit{{{signal},upper,{severity}}}"


TRACES = (
    *(CENTER, SIGMA, MEDIAN),
    *(_limit(signal, severity) for signal in ("loss", "grad_norm") for severity in ("warning", "critical")),
)
"""Names of the series that a replay has to return for a page."""


def panels(run: ReplayedRun) -> list[Panel]:
    """Return loss and gradient norm of a run, those that the log has, with centre line and limits."""
    rows = run.run.rows
    loss = [
        _logged("loss", rows, lambda row: row.loss),
        _logged("eval_loss", rows, lambda row: row.evaluations.get("eval_loss"), "evaluation"),
        *_control_lines(run.traces),
        *_absolute(run.traces, "loss"),
    ]
    norm = [
        _logged("gradient norm", rows, lambda row: row.grad_norm),
        *_multiples(run.traces),
        *_absolute(run.traces, "grad_norm"),
    ]
    found = [Panel("loss", tuple(loss)), Panel("gradient norm", tuple(norm))]
    return [panel for panel in found if _was_logged(panel)] or found[:1]


def _was_logged(panel: Panel) -> bool:
    logged = (line for line in panel.lines if line.kind in {"value", "evaluation"})
    return any(value is not None for line in logged for value in line.values)


def _logged(
    name: str, rows: tuple[Row, ...], value: Callable[[Row], float | None], kind: str = "value"
) -> Line:
    return Line(name, tuple(range(len(rows))), tuple(map(value, rows)), kind)


def _control_lines(traces: Mapping[str, Trace]) -> list[Line]:
    center, sigma = traces.get(CENTER), traces.get(SIGMA)
    if center is None or sigma is None:
        return []
    scales = dict(zip(sigma.rows, sigma.values, strict=True))
    upper = [
        value + CONTROL_SIGMAS * scales[row] if row in scales else None
        for row, value in zip(center.rows, center.values, strict=True)
    ]
    return [
        Line("centre line", center.rows, center.values, "center"),
        Line(f"centre + {CONTROL_SIGMAS:.0f} sigma", center.rows, tuple(upper), "limit"),
    ]


def _multiples(traces: Mapping[str, Trace]) -> list[Line]:
    median = traces.get(MEDIAN)
    if median is None:
        return []
    high = tuple(RATIO * value for value in median.values)
    return [
        Line("trailing median", median.rows, median.values, "center"),
        Line(f"{RATIO:.0f} medians", median.rows, high, "limit"),
    ]


def _absolute(traces: Mapping[str, Trace], signal: str) -> list[Line]:
    found = []
    for severity in ("warning", "critical"):
        trace = traces.get(_limit(signal, severity))
        if trace is not None:
            found.append(Line(f"{severity} limit", trace.rows, trace.values, "limit"))
    return found
