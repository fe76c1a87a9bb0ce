"""The ``latency`` benchmark."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from trainswitch.config import HOME_VARIABLE
from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.evidence import Evidence
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain, console
from trainswitch_controller.cli.stack import Stack, start_stack, stop_stack

BAR_P50_S, BAR_P99_S = 2.0, 4.0
_PROCESSES = 4
_FIRST_FAULT_S, _LAST_FAULT_S = 15.0, 55.0
_LONGEST_S = 30.0
_STEP_S = 0.02
_STAGES = ("first_sample", "firing", "webhook", "written", "applied")
_REPOSITORY = Path(__file__).resolve().parents[2]


class FaultKind(str, enum.Enum):
    """What goes wrong in each run."""

    NAN = "nan"
    EXPLOSION = "explosion"


def run(
    faults: Annotated[int, typer.Option(min=40, help="How many, each in a run of its own.")] = 48,
    kind: Annotated[
        FaultKind, typer.Option(help="nan: one loss; explosion: all gradient norms from a step on.")
    ] = FaultKind.NAN,
    seed: Annotated[int, typer.Option(help="Of the moments at which the faults strike.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Inject faults at random moments, and time every stage until the trainer has acted (1 s scrape).

    Bar: applied p50 <= 2 s and p99 <= 4 s after the faulty step.
    """
    report = Report(as_json=as_json)
    with tempfile.TemporaryDirectory(prefix="trainswitch-latency-") as name:
        home = Path(name)
        try:
            policy = Path(__file__).with_name("policy.yml")
            stack = start_stack(home, policy=policy, on_progress=report.say)
            times = _measure(stack, faults, kind.value, seed)
        finally:
            stop_stack(home)
    summary: dict[str, Any] = {
        stage: _quantiles([at for one in times if (at := one[stage]) is not None]) for stage in _STAGES
    }
    missing = sum(one["applied"] is None for one in times)
    applied = summary["applied"]
    passed = missing == 0 and applied["p50"] <= BAR_P50_S and applied["p99"] <= BAR_P99_S
    report.table(
        ("s after the faulty step", "p50", "p95", "p99", "max"),
        [(stage, *(f"{value:.2f}" for value in summary[stage].values())) for stage in _STAGES],
    )
    report.say(f"{faults} faults ({kind.value}), {missing} without an intervention.")
    if not passed:
        complain(f"the bar is missed: applied p50 <= {BAR_P50_S} s, p99 <= {BAR_P99_S} s, none missing.")
    report.result(
        {
            "ok": passed,
            "faults": faults,
            "kind": kind.value,
            "missing": missing,
            "bar": {"applied_p50_s": BAR_P50_S, "applied_p99_s": BAR_P99_S},
            "seconds_after_fault": summary,
        }
    )
    if not passed:
        raise typer.Exit(1)


def _measure(stack: Stack, faults: int, kind: str, seed: int) -> list[dict[str, float | None]]:
    """Return the seconds to each stage, fault by fault."""
    with contextlib.ExitStack() as leaving:
        processes = [
            leaving.enter_context(_trainers(stack.home, number, count, kind, seed))
            for number, count in enumerate(_shares(faults))
            if count
        ]
        struck = [line for process, count in processes for line in _lines(process, count, faults)]
        client = leaving.enter_context(ControllerClient(stack.controller, stack.operator_token_file))
        deadline = time.monotonic() + _LONGEST_S
        timelines = []
        for fault in struck:
            evidence = Evidence(stack, client, fault["run"])
            while evidence.collect(fault["at"], fault["step"]).applied is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.2)
            timelines.append(evidence.timeline.since_fault())
        return timelines


def _shares(faults: int) -> list[int]:
    return [faults // _PROCESSES + (number < faults % _PROCESSES) for number in range(_PROCESSES)]


@contextlib.contextmanager
def _trainers(
    home: Path, number: int, count: int, kind: str, seed: int
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    arguments = [f"bench-{number}", count, seed * 100 + number, kind, _STEP_S, _FIRST_FAULT_S, _LAST_FAULT_S]
    with (home / f"trainers-{number}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.latency.trainers", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=_REPOSITORY,
            env={**os.environ, HOME_VARIABLE: str(home)},
        )
    try:
        yield process, count
    finally:
        process.kill()
        process.communicate()


def _lines(process: subprocess.Popen[str], count: int, faults: int) -> Iterator[dict[str, Any]]:
    """Yield a line for each fault of one process, showing how far all are."""
    assert process.stdout is not None
    with console(stderr=True).status(f"waiting for {faults} faults to strike") as line:
        for number in range(count):
            yield json.loads(process.stdout.readline())
            line.update(f"{number + 1} of {count} faults of this process have struck")


def _quantiles(values: list[float]) -> dict[str, float]:
    if not values:
        return dict.fromkeys(("p50", "p95", "p99", "max"), float("inf"))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(values)}
