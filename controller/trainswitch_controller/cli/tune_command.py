"""The ``tune`` subcommand: limits from recorded runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trainswitch.config import MonitorConfig, load_config
from trainswitch.files import write_atomically
from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.errors import CliError, UsageProblem
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report
from trainswitch_controller.cli.progress import showing_progress
from trainswitch_controller.cli.recordings import ColumnOption, FormatOption, RunsArgument, read_runs
from trainswitch_controller.cli.replay_options import (
    BinDirOption,
    JobsOption,
    PaceOption,
    RulesOption,
    ScrapeOption,
)
from trainswitch_controller.cli.stack.binaries import find_prometheus
from trainswitch_controller.replay import ReplayResult, load_rules, replay
from trainswitch_controller.tune import (
    SIGNALS,
    Budget,
    Proposal,
    Signal,
    read_labels,
    relevant_rules,
    tune,
    yaml_of,
)
from trainswitch_controller.tune.judging import SEVERITIES

_EPILOG = (
    "Examples: trainswitch tune logs/ --out limits.yml · "
    "trainswitch tune logs/*.csv --labels troubles.csv --budget 0.5 --signal grad_norm"
)

LabelsOption = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="CSV that says where runs went wrong: run, from_step, to_step (or from_row, to_row), what.",
        show_default="all runs are healthy",
    ),
]
BudgetOption = Annotated[
    float,
    typer.Option(
        "--budget", metavar="N", min=0.0, help="Critical false alarms in 100,000 steps that limits may add."
    ),
]
WarningBudgetOption = Annotated[
    float, typer.Option("--warning-budget", metavar="N", min=0.0, help="The same for warnings.")
]
SignalOption = Annotated[
    list[str] | None,
    typer.Option(
        "--signal",
        metavar="SIGNAL",
        help=f"Propose limits of this: {', '.join(SIGNALS)}; may be repeated.",
        show_default="all of them",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration of the monitor: its phases and settings hold, and are written with the limits.",
        show_default=False,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write the configuration there; a file that exists is left alone.",
        show_default="standard output",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("tune", epilog=_EPILOG)(_tune)


def _tune(
    paths: RunsArgument,
    labels: LabelsOption = None,
    budget: BudgetOption = 1.0,
    warning_budget: WarningBudgetOption = 10.0,
    signals: SignalOption = None,
    config: ConfigOption = None,
    out: OutOption = None,
    rules: RulesOption = None,
    pace: PaceOption = 1.0,
    scrape: ScrapeOption = 1.0,
    jobs: JobsOption = None,
    form: FormatOption = None,
    columns: ColumnOption = None,
    bin_dirs: BinDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Propose limits that runs like these keep, and say what each would have cost and caught.

    Levels of each signal are tried by replaying the runs with the real rules; what is chosen is replayed
    again, so that the numbers hold. Limits are written as a configuration with their reasons.
    """
    report = Report(as_json=as_json)
    settings = load_config(config)
    if out is not None:
        _check_out(out)
    prometheus = find_prometheus(bin_dirs or ())
    loaded, alerts = relevant_rules(
        load_rules(rules or [assets_folder() / "prometheus" / "rules"]), _signals(signals or SIGNALS)
    )
    with showing_progress() as progress:
        runs = read_runs(paths, form, columns, progress)
        known = read_labels(labels, runs) if labels is not None else {}

        def play(config: MonitorConfig, traces: Sequence[str] = ()) -> ReplayResult:
            return replay(
                runs,
                loaded,
                prometheus=prometheus,
                config=config,
                pace=pace,
                scrape=scrape,
                jobs=jobs,
                traces=traces,
                progress=progress,
            )

        proposal = tune(
            runs,
            play,
            alerts=alerts,
            config=settings,
            labels=known,
            budget=Budget(budget, warning_budget),
            progress=progress,
        )
    text = yaml_of(proposal)
    _tell(report, proposal)
    if out is not None:
        _write(out, text)
        report.say(f"The configuration is {out}.")
    elif not as_json:
        sys.stdout.write(f"\n{text}")
    report.result({**_document(proposal), "configuration": text})


def _signals(names: Sequence[str]) -> list[Signal]:
    known: dict[str, Signal] = {name: name for name in SIGNALS}
    for name in names:
        if name not in known:
            raise UsageProblem(f"--signal {name!r} does not exist: use {', '.join(SIGNALS)}.")
    return [known[name] for name in dict.fromkeys(names)]


def _check_out(path: Path) -> None:
    if path.exists():
        raise UsageProblem(f"--out {path} exists: remove it, or name another file.")
    if not path.absolute().parent.is_dir():
        raise UsageProblem(f"--out {path} is in a folder that does not exist: make it, or name another.")


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}.") from error


def _tell(report: Report, proposal: Proposal) -> None:
    troubles = len(proposal.troubles)
    report.table(
        ("SIGNAL", "PHASE", "SEVERITY", "LIMIT", "FALSE ALARMS", "MET", "CHOSEN"),
        (
            (
                candidate.slot.signal,
                candidate.slot.phase,
                candidate.slot.severity,
                f"{candidate.value:g}",
                candidate.measure.false_alarms,
                f"{len(candidate.measure.caught)}/{troubles}" if troubles else None,
                "chosen" if candidate.chosen else "",
            )
            for candidate in proposal.candidates
        ),
    )
    report.say("")
    for place in proposal.places:
        where = f" in phase {place.phase}" if place.phase else ""
        report.say(
            f"{place.signal}{where}: median {place.median:.4g}, highest healthy value {place.highest:.4g} "
            f"(run {place.highest_run}, row {place.highest_row}); if that was trouble, name it with --labels."
        )
    if proposal.troubles and proposal.unlabelled:
        report.say(f"{len(proposal.unlabelled)} runs are not in the labels and were taken for healthy.")
    for severity in SEVERITIES:
        total, alone = proposal.total[severity], proposal.alone[severity]
        met = f"; troubles met: {len(total.caught)} of {troubles}, without limits {len(alone.caught)}"
        report.say(
            f"{severity}: {total.false_alarms} false alarms, {proposal.allowed[severity]} allowed in "
            f"{proposal.steps} steps{met if troubles else ''}."
        )


def _document(proposal: Proposal) -> dict[str, Any]:
    """Return the proposal for programs."""
    return {
        "runs": list(proposal.runs),
        "unlabelled": list(proposal.unlabelled),
        "steps": proposal.steps,
        "troubles": [
            {"run": one.run, "first_row": one.first, "last_row": one.last, "what": one.what}
            for one in proposal.troubles
        ],
        "candidates": [
            {
                "signal": one.slot.signal,
                "phase": one.slot.phase,
                "severity": one.slot.severity,
                "value": one.value,
                "false_alarms": one.measure.false_alarms,
                "troubles_met": len(one.measure.caught),
                "chosen": one.chosen,
            }
            for one in proposal.candidates
        ],
        "verified": {
            severity: {
                "false_alarms": proposal.total[severity].false_alarms,
                "allowed": proposal.allowed[severity],
                "troubles_met": len(proposal.total[severity].caught),
                "troubles_met_without_limits": len(proposal.alone[severity].caught),
            }
            for severity in SEVERITIES
        },
    }
