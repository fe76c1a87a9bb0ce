"""From runs to limits: each level is replayed with the real rules, and so is what is chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from trainswitch.config import MonitorConfig
from trainswitch.limits import LimitConfig
from trainswitch_controller.errors import TuneError
from trainswitch_controller.replay.model import Progress, RecordedRun, ReplayResult
from trainswitch_controller.tune.choosing import Levels, choose, looser
from trainswitch_controller.tune.judging import SEVERITIES, Judge, Measure, Severity, Slot
from trainswitch_controller.tune.labels import Trouble
from trainswitch_controller.tune.levels import FEWEST_VALUES, RATIO_TRACES, Place, Signal, places
from trainswitch_controller.tune.phases import proposed_phases
from trainswitch_controller.tune.proposal import Candidate, Proposal
from trainswitch_controller.tune.writing import reason_of

PER_STEPS = 100_000
"""Steps that a budget is for."""


class Replay(Protocol):
    """Plays the runs with a configuration, and returns what fired and the series that were asked for."""

    def __call__(self, config: MonitorConfig, traces: Sequence[str] = ()) -> ReplayResult:
        """Replay."""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """False alarms that limits may add in `PER_STEPS` steps."""

    critical: float = 1.0
    warning: float = 10.0

    def allowed(self, severity: Severity, steps: int) -> int:
        """Return how many these are in so many steps."""
        rate = self.critical if severity == "critical" else self.warning
        return math.floor(rate * steps / PER_STEPS)


def tune(
    runs: Sequence[RecordedRun],
    replay: Replay,
    *,
    alerts: Mapping[Signal, set[str]],
    config: MonitorConfig,
    labels: Mapping[str, Sequence[Trouble]],
    budget: Budget,
    progress: Progress = lambda _what, _done, _total: None,
) -> Proposal:
    """Propose limits.

    Args:
        runs: alike enough that one limit can hold for all of them.
        replay: plays them.
        alerts: signal → the alerts that read its limit, as `relevant_rules` returns them.
        config: whose other settings hold in the replays and are kept.
        labels: as `read_labels` returns them; empty where nobody said anything.
        budget: of false alarms.
        progress: hears of the replays.

    Raises:
        TuneError: the configuration has such limits already, the runs say too little about every signal, or
            no limit fits into the budget.
    """
    _refuse_contradictions(config, alerts)
    if not config.phases and (proposed := proposed_phases(runs, config)):
        config = _with(config, phases=proposed)
    alone = replay(config, RATIO_TRACES)
    found = places(alone.runs, config, labels, tuple(alerts))
    if not found:
        raise TuneError(
            f"the runs have fewer than {FEWEST_VALUES} healthy values of {', '.join(alerts)} in each phase: "
            "give more."
        )
    judge = Judge(alone, config, labels, alerts)
    trials = _Trials(config, found, replay, judge, progress)
    levels = trials.levels()
    steps = sum(row.is_step for run in runs for row in run.rows)
    allowed = {severity: budget.allowed(severity, steps) for severity in SEVERITIES}
    choice, result = trials.verified(choose(levels, allowed, trials.margins()), levels, allowed)
    troubles = tuple(trouble for of_run in labels.values() for trouble in of_run)
    names = [run.id for run in runs]

    def reason(slot: Slot) -> str:
        return reason_of(judge.measure(result, slot), len(troubles), steps, names)

    return Proposal(
        runs=tuple(names),
        unlabelled=tuple(name for name in names if name not in labels),
        steps=steps,
        troubles=troubles,
        places=tuple(found),
        candidates=tuple(
            Candidate(slot, trials.value(slot, index), measure, choice.get(slot) == index)
            for slot, measures in levels.items()
            for index, measure in enumerate(measures)
        ),
        allowed=allowed,
        alone={severity: judge.total(alone, severity) for severity in SEVERITIES},
        total={severity: judge.total(result, severity) for severity in SEVERITIES},
        config=trials.config(choice, reason),
    )


def _refuse_contradictions(config: MonitorConfig, signals: Iterable[str]) -> None:
    for limit in config.limits:
        if limit.signal in signals:
            raise TuneError(
                f"the configuration has a limit of {limit.signal} already ({limit.value:g}): remove it, or "
                "leave that signal out with --signal."
            )


def _with(config: MonitorConfig, **changes: Any) -> MonitorConfig:
    """Return `config` with other phases or limits, checked again."""
    return MonitorConfig.model_validate({**config.model_dump(exclude_unset=True), **changes})


class _Trials:
    """Replays of the same runs with one choice of levels after the other."""

    def __init__(
        self,
        config: MonitorConfig,
        found: Sequence[Place],
        replay: Replay,
        judge: Judge,
        progress: Progress,
    ) -> None:
        self._config = config
        self._slots = {slot: place for place in found for slot in _slots_of(place)}
        self._replay = replay
        self._judge = judge
        self._progress = progress

    def value(self, slot: Slot, index: int) -> float:
        """Return the limit that a level stands for."""
        return self._slots[slot].levels[index]

    def config(
        self, choice: Mapping[Slot, int], reason: Callable[[Slot], str] = lambda _slot: ""
    ) -> MonitorConfig:
        """Return the configuration with the limits of a choice.

        Where both severities have one value, the critical limit warns as well.
        """
        limits = [
            LimitConfig(
                signal=slot.signal,
                severity=slot.severity,
                phase=slot.phase,
                value=self.value(slot, index),
                reason=reason(slot),
            )
            for slot, index in choice.items()
            if slot.severity == "critical"
            or choice.get(dataclasses.replace(slot, severity="critical")) != index
        ]
        return _with(self._config, limits=(*self._config.limits, *limits))

    def margins(self) -> dict[Slot, int]:
        """Return slot → the index of its tightest level with a margin."""
        return {slot: place.margin for slot, place in self._slots.items()}

    def levels(self) -> dict[Slot, list[Measure]]:
        """Return slot → what each level does; one replay tries a level of all: alerts are of one signal."""
        depth = max(len(place.levels) for place in self._slots.values())
        measured: dict[Slot, list[Measure]] = {slot: [] for slot in self._slots}
        for index in range(depth):
            self._progress("levels tried", index, depth)
            choice = {slot: min(index, len(place.levels) - 1) for slot, place in self._slots.items()}
            result = self._replay(self.config(choice))
            for slot, place in self._slots.items():
                if index < len(place.levels):
                    measured[slot].append(self._judge.measure(result, slot))
        self._progress("levels tried", depth, depth)
        return measured

    def verified(
        self, choice: dict[Slot, int], levels: Levels, allowed: Mapping[Severity, int]
    ) -> tuple[dict[Slot, int], ReplayResult]:
        """Replay a choice, and loosen what is over the budget until it holds; return it and its replay.

        The levels were measured one by one; together with others, an episode may begin in another phase.

        Raises:
            TuneError: nothing is left of it.
        """
        while choice:
            self._progress("choices replayed", 0, 1)
            result = self._replay(self.config(choice))
            self._progress("choices replayed", 1, 1)
            over = [
                severity
                for severity in SEVERITIES
                if self._judge.total(result, severity).false_alarms > allowed[severity]
            ]
            if not over:
                return choice, result
            candidates = [slot for slot in choice if slot.severity == over[0]] or list(choice)
            measured = {slot: self._judge.measure(result, slot).false_alarms for slot in candidates}
            choice = looser(choice, levels, max(candidates, key=measured.__getitem__))
        raise TuneError(
            "no limit keeps within the budget: raise --budget or --warning-budget, or name the runs' "
            "troubles with --labels."
        )


def _slots_of(place: Place) -> list[Slot]:
    severities: tuple[Severity, ...] = ("warning",) if place.signal == "loss_ratio" else SEVERITIES
    return [Slot(place.signal, severity, place.phase) for severity in severities]
