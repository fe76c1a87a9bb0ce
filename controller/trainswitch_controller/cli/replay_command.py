"""The ``replay`` subcommand: what the rules would have said about recorded runs."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from trainswitch.config import load_config
from trainswitch.files import write_atomically
from trainswitch_controller.cli.assets import assets_folder, default_policy
from trainswitch_controller.cli.errors import CliError, UsageProblem
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
from trainswitch_controller.cli.signals import ending_on_sigterm
from trainswitch_controller.cli.stack.binaries import find_prometheus
from trainswitch_controller.errors import ReplayError
from trainswitch_controller.policy import load_policy
from trainswitch_controller.replay import Episode, ReplayResult, load_rules, page, replay
from trainswitch_controller.replay.page.figure import PLOTLY_IS_MISSING

_EPILOG = (
    "Examples: trainswitch replay outputs/run-1/trainer_state.json · "
    "trainswitch replay logs/*.csv --rules my-rules.yml --json"
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration of the monitor, with its limits and statistics, for all runs.",
        show_default=False,
    ),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Policy whose interventions are told of.",
        show_default="conservative.yml",
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page with a plot of each run, which needs nothing else.",
        show_default=False,
    ),
]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print a JSON object for each run and each episode, one a line.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("replay", epilog=_EPILOG)(_replay)


def _replay(
    paths: RunsArgument,
    rules: RulesOption = None,
    policy: PolicyOption = None,
    config: ConfigOption = None,
    html: HtmlOption = None,
    pace: PaceOption = 1.0,
    scrape: ScrapeOption = 1.0,
    jobs: JobsOption = None,
    form: FormatOption = None,
    columns: ColumnOption = None,
    bin_dirs: BinDirOption = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Play recorded runs as if they were trained now, and say which alerts would have fired.

    Each row of a log is a step. It goes through the aggregator of the trainer's endpoint; a Prometheus of the
    replay's own evaluates the rules; the policy answers what fires, but the log goes on as it was recorded.
    Nobody is notified, and nothing is left behind. Exit code 0 means that the replay worked, whatever fired.
    """
    from trainswitch_controller.replay.policy_simulation import simulate  # brings the journal's database

    report = Report(as_json=as_json)
    prometheus = find_prometheus(bin_dirs or ())
    loaded = load_rules(rules or [assets_folder() / "prometheus" / "rules"])
    settings = load_config(config)
    answering, _ = load_policy(policy or default_policy())
    if html is not None:
        _check_page(html)
    with ending_on_sigterm(), showing_progress() as progress:
        runs = read_runs(paths, form, columns, progress)
        result = replay(
            runs,
            loaded,
            prometheus=prometheus,
            config=settings,
            pace=pace,
            scrape=scrape,
            jobs=jobs,
            traces=page.TRACES if html is not None else (),
            progress=progress,
        )
        result = simulate(result, answering)
        if html is not None:
            _write(html, page.render(result, title="Replay", progress=progress))
    if as_json:
        for line in _lines(result):
            print(json.dumps(line))
    else:
        _tell(report, result)
    if html is not None:
        report.say(f"The page is {html}.")


def _check_page(path: Path) -> None:
    """Find out before the work, and not after it, that the page cannot be written."""
    if not path.absolute().parent.is_dir():
        raise UsageProblem(f"--html {path} is in a folder that does not exist: make it, or name another.")
    if importlib.util.find_spec("plotly") is None:
        raise ReplayError(PLOTLY_IS_MISSING)


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror or error}.") from error


def _lines(result: ReplayResult) -> Iterable[dict[str, Any]]:
    """Yield what ``--json`` prints: an object for each run, silent or not, and one for each episode."""
    from trainswitch_controller.replay.policy_simulation import document

    for replayed in result.runs:
        yield {"run": replayed.run.id, "path": str(replayed.run.path), "rows": len(replayed.run.rows)}
        for intervention in replayed.interventions:
            yield {"run": replayed.run.id, "intervention": document(intervention)}
        for episode in replayed.episodes:
            yield {
                "run": episode.run,
                "alert": episode.alert,
                "severity": episode.severity,
                "start_row": episode.start_row,
                "end_row": episode.end_row,
                "start_s": round(episode.start, 3),
                "end_s": round(episode.end, 3),
                "action": episode.action,
            }


def _tell(report: Report, result: ReplayResult) -> None:
    if result.episodes:
        report.table(
            ("RUN", "ALERT", "SEVERITY", "ROWS", "STEP", "ASKS FOR"),
            (
                (
                    episode.run,
                    episode.alert,
                    episode.severity,
                    _span(episode),
                    replayed.run.rows[episode.start_row].step,
                    episode.action,
                )
                for replayed in result.runs
                for episode in replayed.episodes
            ),
        )
        report.say("")
    if any(replayed.interventions for replayed in result.runs):
        report.table(
            ("RUN", "ROW", "POLICY", "ACTION", "FOR", "BECAUSE"),
            (
                (one.run, one.row, one.outcome, one.action, one.alert, one.reason)
                for replayed in result.runs
                for one in replayed.interventions
            ),
        )
        report.say("")
    rows = sum(len(replayed.run.rows) for replayed in result.runs)
    silent = sum(not replayed.episodes for replayed in result.runs)
    found = Counter(episode.severity for episode in result.episodes)
    said = ", ".join(f"{count} {severity}" for severity, count in sorted(found.items())) or "none"
    report.say(f"{len(result.runs)} runs of {rows} rows; episodes: {said}; runs without any: {silent}.")


def _span(episode: Episode) -> str:
    if episode.start_row == episode.end_row:
        return str(episode.start_row)
    return f"{episode.start_row}–{episode.end_row}"
