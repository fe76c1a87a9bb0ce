"""From firing alerts to episodes: per run, alert and severity, in rows of the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainswitch_controller.replay.alerting import FiringSpan
from trainswitch_controller.replay.model import Episode, RecordedRun
from trainswitch_controller.replay.rule_files import Rule
from trainswitch_controller.replay.timeline import TAIL_S, Grid, Timeline


class Episodes:
    """Collects the episodes of some runs."""

    def __init__(self, runs: Iterable[RecordedRun], timeline: Timeline) -> None:
        self._timeline = timeline
        self._rows = {run.id: len(run.rows) for run in runs}
        self._found: dict[str, list[Episode]] = {run: [] for run in self._rows}
        self._unjudged: set[str] = set()

    @property
    def unjudged(self) -> tuple[str, ...]:
        """Names of the alerts that fired without naming one of the runs."""
        return tuple(sorted(self._unjudged))

    def of(self, run: str) -> tuple[Episode, ...]:
        """Return the episodes of one run, by their start."""
        return tuple(
            sorted(self._found[run], key=lambda episode: (episode.start, episode.alert, episode.severity))
        )

    def add(self, rule: Rule, grid: Grid, spans: Sequence[FiringSpan]) -> None:
        """Take the times at which the alerts of one rule fired.

        Alerts that differ in other labels than run and severity are one episode while any of them fires.
        """
        by_run: dict[tuple[str, str], list[FiringSpan]] = {}
        for span in spans:
            run = span.labels.get("run")
            if run in self._rows:
                by_run.setdefault((run, span.labels.get("severity", "")), []).append(span)
            else:
                self._unjudged.add(rule.name)
        for (run, severity), of_run in by_run.items():
            for merged in _merged(of_run):
                episode = self._episode(rule, grid, run, severity, merged)
                if episode is not None:
                    self._found[run].append(episode)

    def _episode(self, rule: Rule, grid: Grid, run: str, severity: str, span: FiringSpan) -> Episode | None:
        rows = self._rows[run]
        last = self._timeline.end_of(rows) + TAIL_S
        start, end = grid.at(span.start), min(grid.at(span.end), last * 1000)
        if start > last * 1000:  # long after the run, and looked at only because others are longer
            return None
        return Episode(
            run=run,
            alert=rule.name,
            severity=severity,
            start_row=self._timeline.row_at(start, rows),
            end_row=self._timeline.row_at(end, rows),
            start=self._timeline.since_first_row(start),
            end=self._timeline.since_first_row(end),
            action=span.labels.get("action"),
            value=span.value,
        )


def _merged(spans: Iterable[FiringSpan]) -> list[FiringSpan]:
    """Return spans without overlaps, and without gaps in which there is no evaluation."""
    merged: list[FiringSpan] = []
    for span in sorted(spans, key=lambda one: one.start):
        if merged and span.start <= merged[-1].end + 1:
            merged[-1].end = max(merged[-1].end, span.end)
        else:
            merged.append(span)
    return merged
