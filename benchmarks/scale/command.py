"""The ``scale`` benchmark."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cores import confine
from benchmarks.scale.measure import Measured, Plan, measure
from benchmarks.scale.server import SCRAPE_SECONDS
from benchmarks.scale.watch import Group, quantile
from trainswitch.errors import TrainswitchError
from trainswitch_controller.cli.errors import MissingBinary
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain
from trainswitch_controller.cli.stack.binaries import binary_version

_DEAREST = 12
_MIB = 1024 * 1024


class WrongOption(TrainswitchError):
    """An option says what cannot be measured."""


def run(
    ranks: Annotated[
        str, typer.Option(help="Numbers of ranks to measure, ascending, separated by commas.")
    ] = "64,256,1024",
    ranks_of_a_run: Annotated[
        int, typer.Option(min=1, help="Ranks of each run; where there are fewer, all are one run.")
    ] = 1024,
    seconds: Annotated[
        int, typer.Option(min=30, help="How long each number of ranks is watched with the rules.")
    ] = 120,
    fill: Annotated[
        int,
        typer.Option(
            min=0,
            help="Seconds after which the largest number is watched again, when the rules' long windows have "
            "filled; 0: not again.",
        ),
    ] = 900,
    cores: Annotated[int, typer.Option(min=1, help="Cores for Prometheus and the ranks together.")] = 2,
    prometheus: Annotated[
        Path | None,
        typer.Option(help="The binary to measure; otherwise the one on PATH.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have a Prometheus of its own scrape synthetic ranks every 5 s, and time each rule group.

    Bar: each evaluation of each group ends before the next is due, and none is missed.
    """
    report = Report(as_json=as_json)
    binary = _find(prometheus)
    counts = _numbers(ranks, ranks_of_a_run)
    confine(cores)
    found: list[Measured] = []
    for count in counts:
        plan = Plan(count, min(count, ranks_of_a_run), seconds, fill if count == counts[-1] else 0)
        found += measure(plan, binary, report.say)
    _print(report, found)
    late = [f"{group.name} at {one.plan.ranks} ranks" for one in found for group in one.late]
    report.result(
        {
            "ok": not late,
            "prometheus": binary_version(binary),
            "cores": cores,
            "scrape_s": SCRAPE_SECONDS,
            "measured": [one.as_json() for one in found],
        }
    )
    if late:
        complain(f"not evaluated within their interval: {', '.join(dict.fromkeys(late))}.")
        raise typer.Exit(1)


def _find(prometheus: Path | None) -> Path:
    found = shutil.which(prometheus or "prometheus")
    if found is None:
        raise MissingBinary(
            f"{prometheus or 'prometheus'} is no program here: name the binary with --prometheus, or install "
            "Prometheus."
        )
    return Path(found).absolute()


def _numbers(text: str, ranks_of_a_run: int) -> list[int]:
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if numbers != sorted(set(numbers)) or numbers[0] == 0:
        raise WrongOption(f"--ranks {text} is no ascending list of numbers: write it like 64,256,1024.")
    for number in numbers:
        if number % min(number, ranks_of_a_run):
            raise WrongOption(
                f"--ranks {number} is no multiple of --ranks-of-a-run {ranks_of_a_run}: change one of them."
            )
    return numbers


def _print(report: Report, found: list[Measured]) -> None:
    report.table(
        (
            "ranks",
            "windows",
            "series",
            "samples/s",
            "RSS",
            "cores: scraping",
            "with rules",
            "ranks themselves",
            "slowest scrape",
        ),
        [
            (
                one.plan.ranks,
                f"{one.age:.0f} s",
                f"{one.phase.load.series:.0f}",
                f"{one.phase.load.samples_per_second:.0f}",
                f"{one.phase.load.resident_bytes / _MIB:.0f} MiB",
                f"{one.bare.prometheus_cores:.2f}",
                f"{one.phase.load.prometheus_cores:.2f}",
                f"{one.phase.load.fleet_cores:.2f}",
                f"{one.slowest_scrape:.2f} s",
            )
            for one in found
        ],
    )
    report.say("")
    report.table(
        ("group", "interval", "ranks", "windows", "median", "p99", "max", "missed", ""),
        _by_group(found),
    )
    largest = found[-1]
    report.say(f"\nThe {_DEAREST} dearest rules at {largest.plan.ranks} ranks:")
    report.table(
        ("group", "rule", "median"),
        [(group, rule, f"{1000 * took:.1f} ms") for group, rule, took in largest.dearest(_DEAREST)],
    )
    for name, count in largest.firing.items():
        complain(f"{name} fires {count} times, though all ranks are healthy: its templates cost time, too.")


def _by_group(found: list[Measured]) -> Iterable[tuple[object, ...]]:
    groups = [(one, group) for one in found for group in one.phase.groups]
    for name in dict.fromkeys(group.name for _, group in groups):
        for number, (one, group) in enumerate(pair for pair in groups if pair[1].name == name):
            shown = (name, f"{group.interval:g} s") if number == 0 else ("", "")
            yield (
                *shown,
                one.plan.ranks,
                f"{one.age:.0f} s",
                *_durations(group),
                f"{group.missed:.0f}",
                "" if group.in_time else "late",
            )


def _durations(group: Group) -> tuple[str, str, str] | tuple[None, None, None]:
    if not group.durations:
        return None, None, None
    median, p99, largest = (quantile(group.durations, share) for share in (0.5, 0.99, 1.0))
    return f"{1000 * median:.1f} ms", f"{1000 * p99:.1f} ms", f"{1000 * largest:.1f} ms"
