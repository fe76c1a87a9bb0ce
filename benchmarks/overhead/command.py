"""The ``overhead`` benchmark."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer

from benchmarks.overhead import bars, hot_path, scrapes, step_time, syncs, watchers
from benchmarks.overhead.scraper import scraping
from benchmarks.overhead.statistics import Median, median
from benchmarks.overhead.verdict import Verdict
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain

_SCRAPE_SECONDS = 1.0


class Effort(NamedTuple):
    """How much is measured."""

    step_time: step_time.Effort
    hot_path_steps: int
    scrapes: int


_FULL = Effort(step_time.Effort((480, 960, 1920), 12, 60.0), hot_path_steps=100_000, scrapes=100)
_QUICK = Effort(step_time.Effort((20,), 2, 4.0), hot_path_steps=20_000, scrapes=20)


def run(
    quick: Annotated[
        bool, typer.Option("--quick", help="A look at every figure; step times are not judged.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the order of the blocks.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure what watching costs: hot path, step time on ÷ off, peers, device syncs, scrapes.

    Bars: hot path <= 5 us; step time <= 1.01 at interval 1 and <= 1.003 at interval 10, in a thread and
    isolated; no added device sync; 1,000 series rendered in < 10 ms, and no step held up by more than 5 ms
    meanwhile. A bar that the noise of the machine leaves open is missed, too.
    """
    report = Report(as_json=as_json)
    watchers.quiet()
    effort = _QUICK if quick else _FULL
    with tempfile.TemporaryDirectory(prefix="trainswitch-overhead-") as name:
        home = Path(name)
        document: dict[str, Any] = {"quick": quick, "machine": _machine()}
        verdicts = [
            *_on_the_host(home, effort, report, document),
            *_step_time(home, effort, seed, report, document),
        ]
    report.table(
        ("figure", "median", "95 % interval", "bar", ""),
        [
            (
                v.name,
                f"{v.measured.value:.4g}",
                f"{v.measured.low:.4g} to {v.measured.high:.4g}",
                v.bar,
                v.outcome,
            )
            for v in verdicts
        ],
    )
    _report_peers(report, document)
    by_name = {verdict.name: verdict for verdict in verdicts}
    document |= {name: verdict.measured.value for name, verdict in by_name.items()}
    document["spread"] = {verdict.name: verdict.measured.as_json() for verdict in verdicts}
    document["bars"] = {verdict.name: verdict.bar for verdict in verdicts}
    document["outcomes"] = {verdict.name: verdict.outcome for verdict in verdicts}
    open_bars = [verdict for verdict in verdicts if verdict.outcome in ("missed", "undecided")]
    document["ok"] = not open_bars
    report.result(document)
    if open_bars:
        complain(_sentence(open_bars))
        raise typer.Exit(1)


def _sentence(verdicts: list[Verdict]) -> str:
    listed = ", ".join(f"{v.name} {v.measured.value:.4g} ({v.outcome}, bar {v.bar:g})" for v in verdicts)
    advice = ""
    if any(verdict.outcome == "undecided" for verdict in verdicts):
        advice = "; where undecided, repeat it on a quiet machine"
    return f"the bar is not met by {listed}{advice}."


def _on_the_host(home: Path, effort: Effort, report: Report, document: dict[str, Any]) -> Iterator[Verdict]:
    report.say("hot path …")
    microseconds = hot_path.microseconds(home, steps=effort.hot_path_steps)
    document["hot_path_fastest_us"] = min(microseconds)
    yield Verdict("hot_path_us", median(microseconds), bars.HOT_PATH_US)
    report.say("device syncs …")
    reads = syncs.added_syncs(home)
    yield Verdict("device_syncs", Median(reads, reads, reads), bars.DEVICE_SYNCS)
    report.say(f"scrapes of {bars.SERIES} series …")
    yield Verdict("scrape_render_seconds", median(scrapes.render_seconds()), bars.RENDER_SECONDS)
    delays = scrapes.stalls(home, scrapes=effort.scrapes)
    # The longest delay counts, but only as far as the same windows without a scrape have none as long.
    longest, anyway = max(delays.scraped), max(delays.unscraped)
    low = longest if anyway <= bars.STALL_SECONDS else statistics.median(delays.scraped)
    yield Verdict("scrape_stall_seconds", Median(longest, low, longest), bars.STALL_SECONDS)


def _step_time(
    home: Path, effort: Effort, seed: int, report: Report, document: dict[str, Any]
) -> Iterator[Verdict]:
    bench = step_time.Bench(home, effort.step_time, seed, report.say)
    document |= {"parameters": bench.twins[0].parameters, "step_seconds": bench.step_seconds}
    report.say(f"{document['parameters'] / 1e6:.1f} M parameters, {bench.step_seconds:.2f} s a step")
    with scraping(home / "targets", _SCRAPE_SECONDS) as windows:
        costs = [bench.cost(isolate=isolate) for isolate in (False, True)]
        for cost in costs:
            yield from cost.verdicts()
        document["step_time"] = {cost.name: cost.as_json() for cost in costs}
        document["whole_steps"] = {name: found.as_json() for name, found in bench.whole_steps.items()}
        document["peers"] = {}
        for name, (watch, package) in watchers.PEERS.items():
            report.say(f"peer {name} …")
            ratio = None if watchers.missing(package) else statistics.median(bench.ratios(watch))
            document["peers"][name] = ratio
    document["scrapes"] = len(windows)


def _report_peers(report: Report, document: dict[str, Any]) -> None:
    for name, ratio in document["peers"].items():
        package = watchers.PEERS[name][1]
        report.say(
            f"peer {name}: not installed, so not measured: pip install {package}"
            if ratio is None
            else f"peer {name}: {ratio:.4f}"
        )


def _machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": sys.version.split()[0],
    }
