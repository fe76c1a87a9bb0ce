"""`replay`: recorded runs through the exporter's aggregator and a real Prometheus, to episodes of alerts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainswitch.config import MonitorConfig
from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.demand import Demand
from trainswitch_controller.replay.episodes import Episodes
from trainswitch_controller.replay.evaluation import Evaluation
from trainswitch_controller.replay.model import Progress, RecordedRun, ReplayedRun, ReplayResult
from trainswitch_controller.replay.order import needed_rules
from trainswitch_controller.replay.playing import Task, play_all
from trainswitch_controller.replay.rule_files import Rule
from trainswitch_controller.replay.server import running_prometheus
from trainswitch_controller.replay.sight import possible_series, scraped_series, sighted
from trainswitch_controller.replay.timeline import LONGEST_S, START_MS, TAIL_S, Timeline


def replay(
    runs: Sequence[RecordedRun],
    rules: Sequence[Rule],
    *,
    prometheus: Path,
    config: MonitorConfig | None = None,
    pace: float = 1.0,
    scrape: float = 1.0,
    jobs: int | None = None,
    traces: Sequence[str] = (),
    progress: Progress = lambda _what, _done, _total: None,
) -> ReplayResult:
    """Find out which alerts would have fired, had `runs` been watched.

    Args:
        runs: at least one, with ids that differ.
        rules: as `load_rules` returns them.
        prometheus: the program that evaluates them.
        config: the monitor's, for all runs; its sinks are left out.
        pace: seconds that each row takes.
        scrape: seconds between two scrapes.
        jobs: processes that play runs at the same time, and queries that run at the same time; by default
            as many as there are CPUs.
        traces: series to return; see `ReplayedRun.traces`.
        progress: hears how far the work is.

    Raises:
        ReplayRulesError: rules read each other in a circle.
        ReplayError: Prometheus does not start, or cannot evaluate a rule.
    """
    timeline = Timeline(pace, scrape)
    jobs = jobs or len(os.sched_getaffinity(0))
    config = config or MonitorConfig()
    end = max(timeline.end_of(len(run.rows)) for run in runs) + TAIL_S
    if end - START_MS / 1000 > LONGEST_S / 2:  # Prometheus takes samples as old as half a block
        raise ReplayError(
            f"the longest run would take {(end - START_MS / 1000) / 86400:.0f} days at a pace of {pace:g} s: "
            "choose a smaller --pace."
        )
    demand = Demand(needed_rules(sighted(rules, possible_series(config))))
    with running_prometheus(prometheus) as url:
        task = Task(url, config, demand, timeline, tuple(traces))
        played = play_all(runs, task, jobs, progress)
        brought = {labels for of_run in played.values() for labels in of_run.series}
        seen = sighted(rules, scraped_series(brought))
        episodes = Episodes(runs, timeline)
        for rule, grid, spans in Evaluation(url, timeline, end * 1000, jobs).run(seen, progress):
            episodes.add(rule, grid, spans)
    return ReplayResult(
        runs=tuple(
            ReplayedRun(run=run, episodes=episodes.of(run.id), traces=played[run.id].traces) for run in runs
        ),
        pace=pace,
        unjudged=episodes.unjudged,
    )
