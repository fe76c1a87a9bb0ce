"""The ``early-warning`` benchmark."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from benchmarks.early_warning import verdict
from benchmarks.early_warning.schedules import CREEP, HEALTHY, RECIPES, SCHEDULES, run_name
from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.errors import CliError
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain
from trainswitch_controller.cli.progress import showing_progress
from trainswitch_controller.cli.stack.binaries import find_prometheus
from trainswitch_controller.replay import Progress, ReplayedRun, load_rules, replay
from trainswitch_controller.replay.readers import read

JUDGED = "sgd"
"""Its norm climbs before the loss breaks; AdamW's hardly does, so that there the loss itself has to warn."""
_REPOSITORY = Path(__file__).resolve().parents[2]


class _Job(NamedTuple):
    optimizer: str
    schedule: str
    seed: int

    @property
    def name(self) -> str:
        return run_name(*self)


def run(
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each kind.")] = 5,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Keep the logs here; what is here is not trained again."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train runs whose learning rate creeps up until the loss breaks, and see when the rules would warn.

    Bar: 4 of 5 runs with SGD are warned of at least 30 steps before the loss breaks. Those with AdamW are
    shown beside them. Healthy runs, with a cosine schedule or a long warm-up, must have no critical alert and
    no warning of a climbing gradient.
    """
    report = Report(as_json=as_json)
    prometheus = find_prometheus()
    jobs = [
        _Job(optimizer, schedule, seed)
        for seed in range(1, seeds + 1)
        for schedule in SCHEDULES
        for optimizer in RECIPES
    ]
    with (
        tempfile.TemporaryDirectory(prefix="trainswitch-early-warning-") as made,
        showing_progress() as progress,
    ):
        paths = _train_all(jobs, keep or Path(made), progress)
        found = replay(
            read(paths, progress=progress).runs,
            load_rules([assets_folder() / "prometheus" / "rules"]),
            prometheus=prometheus,
            progress=progress,
        )
    passed = _tell(report, seeds, dict(zip(jobs, found.runs, strict=True)))
    if not passed:
        raise typer.Exit(1)


def _train_all(jobs: Sequence[_Job], folder: Path, progress: Progress) -> list[Path]:
    """Train what is not in `folder` yet, as many at once as there are CPUs, and return the logs."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{job.name}.csv" for job in jobs]
    missing = [job for job, path in zip(jobs, paths, strict=True) if not path.exists()]
    processes = len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        try:
            for done, _ in enumerate(pool.map(lambda job: _train(job, folder), missing)):
                progress("training", done + 1, len(missing))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return paths


def _train(job: _Job, folder: Path) -> None:
    arguments = [job.optimizer, job.schedule, str(job.seed), str(folder.absolute())]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.early_warning.training", *arguments],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CliError(f"training {job.name} failed: {done.stderr.strip().splitlines()[-1]}")


def _tell(report: Report, seeds: int, found: dict[_Job, ReplayedRun]) -> bool:
    """Print what was found, and return whether the bars hold."""
    outcomes = {
        job: verdict.judge(replayed, RECIPES[job.optimizer].creep_from)
        for job, replayed in found.items()
        if job.schedule == CREEP
    }
    alarms = [
        episode
        for job, replayed in found.items()
        for episode in verdict.false_alarms(
            replayed, RECIPES[job.optimizer].creep_from if job.schedule == CREEP else None
        )
    ]
    early = {
        name: sum(outcome.is_early for job, outcome in outcomes.items() if job.optimizer == name)
        for name in RECIPES
    }
    healthy = sum(job.schedule in HEALTHY for job in found)
    report.table(
        ("RUN", "LOSS BREAKS", "FIRST ALERT", "AT", "LEAD", verdict.WARNING),
        [
            (
                outcome.run,
                outcome.broke,
                outcome.first.alert if outcome.first else None,
                outcome.first.start_row if outcome.first else None,
                outcome.lead,
                outcome.climbing.start_row if outcome.climbing else None,
            )
            for job, outcome in sorted(outcomes.items())
        ],
    )
    report.say(
        f"Warned of {verdict.BAR_ROWS} rows or more before: "
        + ", ".join(f"{count} of {seeds} with {name}" for name, count in early.items())
        + f". False alarms in {healthy} healthy runs and before the rate creeps: {len(alarms)}."
    )
    for episode in alarms:
        report.say(f"  {episode.run}: {episode.alert} ({episode.severity}) at row {episode.start_row}")
    grave = [one for one in alarms if one.severity == "critical" or one.alert == verdict.WARNING]
    problems = []
    if early[JUDGED] < verdict.needed(seeds):
        problems.append(f"{early[JUDGED]} of {seeds} runs with {JUDGED} were warned of in time")
    if grave:
        problems.append(f"{len(grave)} false alarms are critical or of {verdict.WARNING}")
    report.result(
        {
            "ok": not problems,
            "seeds": seeds,
            "bar": {"lead_rows": verdict.BAR_ROWS, "runs": verdict.needed(seeds), "optimizer": JUDGED},
            "early": early,
            "runs": [outcome.as_json() for _, outcome in sorted(outcomes.items())],
            "healthy_runs": healthy,
            "false_alarms": [
                {"run": one.run, "alert": one.alert, "severity": one.severity, "row": one.start_row}
                for one in alarms
            ],
        }
    )
    if problems:
        complain(f"the bar is missed: {'; '.join(problems)}.")
    return not problems
