"""The page: a summary on top, a plot of each run below; one file, and nothing is fetched from anywhere."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.model import Progress, ReplayedRun, ReplayResult
from trainswitch_controller.replay.page.figure import COLOURS, HEIGHT, PLOTLY_IS_MISSING, describe, figure

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""The browser itself refuses whatever would need a network."""

_STYLE = f"""
body {{ font: 14px/1.45 system-ui, sans-serif; color: #24292f; margin: 2em auto; max-width: 1200px;
  padding: 0 1em; }}
h1 {{ font-size: 1.5em; }} h2 {{ font-size: 1.1em; margin: 2.2em 0 .2em; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .25em .8em .25em 0; border-bottom: 1px solid #d0d7de;
  vertical-align: top; }}
td.n, th.n {{ text-align: right; }}
.critical {{ color: {COLOURS["critical"]}; }} .quiet {{ color: #6e7781; }}
.plot {{ min-height: {HEIGHT}px; }}
"""

_SCRIPT = """
const seen = new IntersectionObserver(entries => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    seen.unobserve(entry.target);
    const data = JSON.parse(document.getElementById(entry.target.dataset.figure).textContent);
    Plotly.newPlot(entry.target, data.data, data.layout, {displaylogo: false, responsive: true});
  }
}, {rootMargin: "600px"});
for (const plot of document.querySelectorAll(".plot")) seen.observe(plot);
"""
"""A plot is drawn when it is scrolled to: a hundred at once would keep the browser busy for a minute."""


def render(
    result: ReplayResult,
    *,
    title: str = "Replay",
    progress: Progress = lambda _what, _done, _total: None,
) -> str:
    """Return the page.

    Args:
        result: a replay with the traces `TRACES`; without them the plots have no limits.
        title: of the page.
        progress: hears of each run.

    Raises:
        ReplayError: the package plotly is not installed.
    """
    return "".join(_parts(result, title, progress))


def _parts(result: ReplayResult, title: str, progress: Progress) -> Iterator[str]:
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n"
        f"<script>{_library()}</script></head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
    )
    yield _summary(result)
    for number, run in enumerate(result.runs):
        progress("drawing", number, len(result.runs))
        yield _section(number, run)
    progress("drawing", len(result.runs), len(result.runs))
    yield f"<script>{_SCRIPT}</script>\n</body></html>\n"


def _library() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ReplayError(PLOTLY_IS_MISSING) from error
    text: str = get_plotlyjs()
    return text


def _summary(result: ReplayResult) -> str:
    rows = sum(len(run.run.rows) for run in result.runs)
    severities = Counter(episode.severity for episode in result.episodes)
    counted = ", ".join(f"{count} {severity}" for severity, count in sorted(severities.items())) or "none"
    head = "".join(
        f"<th{' class=n' if number else ''}>{name}</th>"
        for name, number in (
            *(("run", False), ("rows", True), ("critical", True), ("warning", True)),
            *(("first critical at row", True), ("alerts", False), ("policy", False)),
        )
    )
    body = "".join(_summary_row(number, run) for number, run in enumerate(result.runs))
    return (
        f"<p>{len(result.runs)} runs with {rows} rows, {result.pace:g} s a row. "
        f"Episodes: {html.escape(counted)}. Shaded: the rows in which an alert was firing. Where a line has "
        "more points than the plot, the lowest and the highest of each stretch are drawn.</p>\n"
        f"<table><tr>{head}</tr>\n{body}</table>\n"
    )


def _summary_row(number: int, run: ReplayedRun) -> str:
    critical = [episode for episode in run.episodes if episode.severity == "critical"]
    warnings = sum(episode.severity == "warning" for episode in run.episodes)
    alerts = Counter(episode.alert for episode in run.episodes)
    named = ", ".join(f"{name} {count}×" if count > 1 else name for name, count in alerts.most_common())
    actions = Counter(one.action for one in run.interventions if one.action)
    policy = ", ".join(f"{name} {count}×" if count > 1 else name for name, count in actions.items())
    first = str(critical[0].start_row) if critical else ""
    return (
        f'<tr><td><a href="#run-{number}">{html.escape(run.run.id)}</a></td>'
        f"<td class=n>{len(run.run.rows)}</td>"
        f'<td class="n {"critical" if critical else "quiet"}">{len(critical)}</td>'
        f"<td class=n>{warnings}</td>"
        f"<td class=n>{first}</td><td>{html.escape(named)}</td><td>{html.escape(policy)}</td></tr>\n"
    )


def _section(number: int, run: ReplayedRun) -> str:
    interventions = "".join(
        f"<li>row {one.row}: {html.escape(describe(one))}. "
        f"<span class=quiet>{html.escape(one.reason)}</span></li>"
        for one in run.interventions
        if one.action is not None
    )
    data = figure(run).replace("<", "\\u003c")
    return (
        f'<h2 id="run-{number}">{html.escape(run.run.id)}</h2>\n'
        f"<div class=quiet>{html.escape(str(run.run.path))}</div>\n"
        f'<div class="plot" data-figure="figure-{number}"></div>\n'
        f'<script type="application/json" id="figure-{number}">{data}</script>\n'
        + (f"<ul>{interventions}</ul>\n" if interventions else "")
    )
