"""All runs played to aggregators of their own, on as many processes as there shall be."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainswitch.config import MonitorConfig
from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.client import PrometheusClient
from trainswitch_controller.replay.demand import Demand
from trainswitch_controller.replay.model import Progress, RecordedRun, Trace
from trainswitch_controller.replay.remote_write import Encoder
from trainswitch_controller.replay.sampling import scrape_run
from trainswitch_controller.replay.series import Labels
from trainswitch_controller.replay.timeline import Timeline


class Task(NamedTuple):
    """What a process needs to play a run, besides the run."""

    url: str
    """Of the Prometheus that the samples are written to."""
    config: MonitorConfig
    demand: Demand
    timeline: Timeline
    traces: tuple[str, ...]


class Played(NamedTuple):
    """What is known of a run that was played."""

    series: list[Labels]
    """Those that were written."""
    traces: Mapping[str, Trace]


def play_all(runs: Sequence[RecordedRun], task: Task, jobs: int, progress: Progress) -> dict[str, Played]:
    """Play each run, write what its scrapes bring to Prometheus, and return what was played by the runs' ids.

    Raises:
        ReplayError: Prometheus does not take the samples, or a process is killed.
    """
    rows = sum(len(run.rows) for run in runs)
    done = 0
    found: dict[str, Played] = {}
    progress("playing rows", 0, rows)
    for run, played in _each(runs, task, min(jobs, len(runs))):
        found[run.id] = played
        done += len(run.rows)
        progress("playing rows", done, rows)
    return found


def _each(runs: Sequence[RecordedRun], task: Task, jobs: int) -> Iterator[tuple[RecordedRun, Played]]:
    if jobs == 1:
        for run in runs:
            yield run, _play(run, task)
        return
    others = multiprocessing.active_children()
    pool = concurrent.futures.ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), _follow_the_parent
    )
    ended = False
    # Runs travel as files: the pool's pipe holds 64 KiB, and who writes more into it when its readers were
    # terminated waits for ever.
    with tempfile.TemporaryDirectory(prefix="trainswitch-replay-runs-") as folder:
        try:
            longest_first = sorted(runs, key=lambda run: -len(run.rows))
            futures = {
                pool.submit(_play_file, _written(run, task, Path(folder, str(number)))): run
                for number, run in enumerate(longest_first)
            }
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
            ended = True
        except concurrent.futures.BrokenExecutor:
            raise ReplayError(
                "a process that played runs was killed, perhaps for want of memory: try fewer --jobs."
            ) from None
        finally:
            if not ended:  # after Ctrl-C, nobody waits for the runs that are being played
                for child in multiprocessing.active_children():
                    if child not in others:
                        child.terminate()
            pool.shutdown(cancel_futures=True)


def _written(run: RecordedRun, task: Task, path: Path) -> Path:
    with path.open("wb") as handle:
        pickle.dump((run, task), handle)
    return path


def _play_file(path: Path) -> Played:
    with path.open("rb") as handle:
        run, task = pickle.load(handle)  # noqa: S301 - written by the parent a moment ago
    path.unlink()
    return _play(run, task)


def _play(run: RecordedRun, task: Task) -> Played:
    scraped = scrape_run(run, task.config, task.demand, task.timeline, task.traces)
    client = PrometheusClient(task.url)
    try:
        client.write(Encoder(task.timeline.scrapes), scraped.series)
    finally:
        client.close()
    return Played([one.labels for one in scraped.series], scraped.traces)


def _follow_the_parent() -> None:
    """Leave Ctrl-C to the parent, which tells what to do, and end when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
