"""The page of a replay: whole in itself, honest about spikes, drawn by a real browser where there is one."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.model import (
    Episode,
    Intervention,
    RecordedRun,
    ReplayedRun,
    ReplayResult,
    Row,
    Trace,
)
from trainswitch_controller.replay.page import TRACES, render
from trainswitch_controller.replay.page.downsample import envelope
from trainswitch_controller.replay.page.figure import STRETCHES

pytest.importorskip("plotly")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SPIKE = 7_777


def rows(count: int) -> tuple[Row, ...]:
    """Return a log with one spike of a single row, one NaN, and an evaluation."""
    losses = [2.0 + 0.01 * math.sin(number) for number in range(count)]
    losses[SPIKE % count] = 9.0
    losses[-1] = math.nan
    evaluations = {5: {"eval_loss": 2.5}}
    return tuple(
        Row(step=number, loss=loss, grad_norm=1.0, evaluations=evaluations.get(number, {}))
        for number, loss in enumerate(losses)
    )


def replayed(name: str = "gpt2", count: int = 10_000) -> ReplayedRun:
    """Return a run with an episode, an intervention and a centre line."""
    return ReplayedRun(
        run=RecordedRun(name, Path("logs") / f"{name}.csv", rows(count)),
        episodes=(
            Episode(
                run=name,
                alert="TrainLossUnstable",
                severity="critical",
                start_row=40,
                end_row=60,
                start=40.0,
                end=60.0,
                action="reduce_lr",
                value=0.25,
            ),
        ),
        traces={
            "train_loss_center": Trace((10, 20), (2.0, 2.0)),
            "train_loss_sigma": Trace((10, 20), (0.5, 0.25)),
            "train_limit{grad_norm,upper,critical}": Trace((10, 20), (5.0, 5.0)),
        },
        interventions=(
            Intervention(
                run=name,
                row=40,
                at=40.0,
                alert="TrainLossUnstable",
                outcome="acted",
                action="reduce_lr",
                params={"factor": 0.5},
                reason="rung 1 of 2.",
            ),
        ),
    )


def page(*runs: ReplayedRun, title: str = "Replay") -> str:
    """Return the page of some runs."""
    return render(ReplayResult(runs=runs, pace=1.0), title=title)


class _Parsed(HTMLParser):
    """Collects figures, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.figures: dict[str, Any] = {}
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._inside = (dict(attrs).get("id") or tag) if tag in {"script", "style"} else ""

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a tag."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Note text, or a figure."""
        if self._inside.startswith("figure-"):
            self.figures[self._inside] = json.loads(data)
        elif not self._inside:
            self.text += data


def lines(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return name → trace of a figure."""
    return {trace["name"]: trace for trace in figure["data"]}


def test_a_plot_shows_signal_limits_episodes_and_interventions() -> None:
    """All that a run's replay found is in its figure, at its rows."""
    parsed = _Parsed(page(replayed()))
    figure = parsed.figures["figure-0"]
    found = lines(figure)
    assert found["centre + 3 sigma"]["y"] == [3.5, 2.75]
    assert found["critical limit"]["y"] == [5.0, 5.0]
    assert (found["eval_loss"]["x"], found["eval_loss"]["y"]) == ([5], [2.5])
    assert found["loss not finite"]["x"] == [9_999]
    assert (found["critical"]["base"], found["critical"]["x"]) == ([39.5], [21])
    assert found["policy"]["hovertext"] == ["reduce_lr (factor 0.5) for TrainLossUnstable: acted"]
    shapes = {shape["type"]: (shape["x0"], shape["x1"]) for shape in figure["layout"]["shapes"]}
    assert shapes == {"rect": (39.5, 60.5), "line": (40, 40)}


def test_a_spike_of_one_row_among_ten_thousand_stays() -> None:
    """Fewer points are drawn, and the highest of them is the log's."""
    loss = lines(_Parsed(page(replayed())).figures["figure-0"])["loss"]
    assert len(loss["x"]) <= 2 * STRETCHES
    assert (max(loss["y"]), loss["x"][loss["y"].index(9.0)]) == (9.0, SPIKE)


@given(
    st.lists(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)), max_size=300),
    st.integers(1, 20),
)
def test_an_envelope_keeps_the_extremes_of_every_stretch(values: list[float | None], stretches: int) -> None:
    """Every point is one of the log's, in its order; the lowest and the highest are among them."""
    finite = [(row, value) for row, value in enumerate(values) if value is not None and math.isfinite(value)]
    kept = list(zip(*envelope(range(len(values)), values, stretches), strict=True))
    assert kept == sorted(kept)
    assert set(kept) <= set(finite)
    assert len(kept) <= max(2 * stretches, 0)
    if finite:
        heights = [value for _, value in finite]
        assert (min(heights), max(heights)) == (min(v for _, v in kept), max(v for _, v in kept))


def test_what_the_log_does_not_have_takes_no_room() -> None:
    """A run without gradient norms has one panel and, without episodes, no strip."""
    run = ReplayedRun(run=RecordedRun("a", Path("a.csv"), (Row(loss=2.0), Row(loss=1.0))), episodes=())
    layout = _Parsed(page(run)).figures["figure-0"]["layout"]
    assert [name for name in layout if name.startswith("yaxis")] == ["yaxis"]


def test_the_summary_names_every_run() -> None:
    """Counts, the first critical row, alerts and the policy's answers stand on top, with a link below."""
    silent = ReplayedRun(run=RecordedRun("quiet", Path("q.csv"), rows(50)), episodes=())
    parsed = _Parsed(page(replayed(), silent, title="My <runs>"))
    assert "My <runs>" in parsed.text
    assert "2 runs with 10050 rows, 1 s a row. Episodes: 1 critical." in parsed.text
    assert re.search(r"gpt2\s*10000\s*1\s*0\s*40\s*TrainLossUnstable\s*reduce_lr", parsed.text)
    links = [value for tag, name, value in parsed.attributes if (tag, name) == ("a", "href")]
    assert links == ["#run-0", "#run-1"]


def test_names_cannot_break_out_of_the_page() -> None:
    """Text of a log, of rules and of a policy is text, also within a figure."""
    hostile = "</script><script>alert(1)</script>"
    run = replayed()
    episode = Episode(run="x", alert=hostile, severity=hostile, start_row=1, end_row=2, start=1.0, end=2.0)
    parsed = _Parsed(
        page(ReplayedRun(run=run.run, episodes=(episode,), interventions=run.interventions), title=hostile)
    )
    plain = _Parsed(page(run))
    assert parsed.tags.count("script") == plain.tags.count("script")
    assert parsed.figures["figure-0"]["data"][-2]["y"] == [hostile]


def test_nothing_is_fetched() -> None:
    """No element names another file, and the page forbids its browser every connection."""
    parsed = _Parsed(page(replayed()))
    assert not {"link", "img", "iframe", "object", "embed", "video", "audio"} & set(parsed.tags)
    assert not [value for _, name, value in parsed.attributes if name in {"src", "srcset", "data"}]
    (policy,) = (value for _, name, value in parsed.attributes if value.startswith("default-src"))
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_a_hundred_long_runs_are_a_page_that_a_browser_can_hold() -> None:
    """A run adds less than 100 kB to the library's own size."""
    empty = len(page())
    assert len(page(replayed("a", 20_000))) - empty < 100_000


def test_the_page_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without plotly the sentence says what to install."""
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ReplayError, match=r"pip install 'trainswitch\[replay\]'"):
        page(replayed())


def test_the_traces_are_series_that_the_exporter_has() -> None:
    """A replay that is asked for them returns them; none is misspelt."""
    from trainswitch.metrics.catalogue import CATALOGUE

    labels = {metric.name: [name for name, _ in metric.labels] for metric in CATALOGUE}
    for trace in TRACES:
        name, _, values = trace.rstrip("}").partition("{")
        assert len(labels[name]) == len(values.split(",") if values else []), trace


@pytest.mark.skipif(CHROMIUM is None, reason="there is no browser on this machine")
def test_a_browser_draws_the_plots_without_a_network(tmp_path: Path) -> None:
    """With every name unresolvable, each plot that is scrolled to is there, with its shades, and no error."""
    path = tmp_path / "page.html"
    path.write_text(page(replayed("a"), replayed("b")), encoding="utf-8")
    assert CHROMIUM is not None
    finished = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,3000"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--virtual-time-budget=30000", "--enable-logging=stderr", "--dump-dom", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=100.0,
        check=True,
    )
    console = [line for line in finished.stderr.splitlines() if ":CONSOLE" in line]
    assert console == []
    assert finished.stdout.count('class="plot-container plotly"') == 2
    assert "TrainLossUnstable" in finished.stdout
    assert finished.stdout.count('class="shapelayer"') > 0
