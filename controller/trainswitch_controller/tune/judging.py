"""What limits cost and catch: a replay with them, held against the labels and a replay without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from trainswitch.config import MonitorConfig
from trainswitch_controller.replay.model import Episode, ReplayResult
from trainswitch_controller.tune.labels import Trouble
from trainswitch_controller.tune.levels import Signal, memory_of
from trainswitch_controller.tune.phases import phases_of_rows

Severity = Literal["critical", "warning"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning")


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """What one limit can be for."""

    signal: Signal
    severity: Severity
    phase: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """What a replay said about one limit, or about all of a severity."""

    false_alarms: int = 0
    """Episodes that meet no trouble, and that the rules do not have without the limit."""
    caught: frozenset[Trouble] = frozenset()
    """Troubles that an episode of at least this severity meets, of the rules' own or of the limit's."""


class Judge:
    """Holds replays of the same runs against their troubles."""

    def __init__(
        self,
        alone: ReplayResult,
        config: MonitorConfig,
        troubles: Mapping[str, Sequence[Trouble]],
        alerts: Mapping[Signal, set[str]],
    ) -> None:
        """Take what is the same for all replays.

        Args:
            alone: the replay without any of the limits.
            config: with the phases.
            troubles: of each run that has some.
            alerts: signal → the alerts that read its limit.
        """
        self._troubles = troubles
        self._alerts = alerts
        self._phases = {run.run.id: phases_of_rows(run.run, config) for run in alone.runs}
        self._memory = {
            alert: memory_of(signal, config) for signal, names in alerts.items() for alert in names
        }
        self._alone: dict[tuple[str, str, str], list[Episode]] = {}
        for episode in alone.episodes:
            self._alone.setdefault((episode.run, episode.alert, episode.severity), []).append(episode)

    def measure(self, result: ReplayResult, slot: Slot) -> Measure:
        """Return what `result` says about the limit of a slot; an episode is of the phase it begins in."""
        episodes = [
            episode
            for episode in result.episodes
            if episode.alert in self._alerts[slot.signal]
            and self._phases[episode.run][episode.start_row] == slot.phase
        ]
        return self._measure(episodes, slot.severity)

    def total(self, result: ReplayResult, severity: Severity) -> Measure:
        """Return what `result` says about all limits of a severity."""
        named = set().union(*self._alerts.values())
        return self._measure([episode for episode in result.episodes if episode.alert in named], severity)

    def _measure(self, episodes: Iterable[Episode], severity: Severity) -> Measure:
        false_alarms = 0
        caught: set[Trouble] = set()
        for episode in episodes:
            if episode.severity not in {severity, "critical"}:
                continue
            start, end = episode.start_row, episode.end_row
            troubles = self._troubles.get(episode.run, ())
            caught |= {trouble for trouble in troubles if trouble.is_met_by(start, end)}
            memory = self._memory[episode.alert]
            excused = any(trouble.is_met_by(start, end, memory) for trouble in troubles)
            if not excused and episode.severity == severity and not self._is_known(episode):
                false_alarms += 1
        return Measure(false_alarms, frozenset(caught))

    def _is_known(self, episode: Episode) -> bool:
        """Whether the rules alone have an episode of the same alert in some of its rows."""
        same = self._alone.get((episode.run, episode.alert, episode.severity), ())
        return any(one.start_row <= episode.end_row and one.end_row >= episode.start_row for one in same)
