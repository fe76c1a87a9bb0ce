"""In which phase of training a row is, and into which phases runs are divided where nobody said."""

from __future__ import annotations

from collections.abc import Sequence

from trainswitch.config import MonitorConfig
from trainswitch.limits import PhaseConfig, Phases
from trainswitch_controller.replay.model import RecordedRun


def steps_of(run: RecordedRun) -> list[int]:
    """Return the step number of each row, as the replay counts where the log has none."""
    number = 0
    numbers = []
    for row in run.rows:
        if row.is_step:
            number = row.step if row.step is not None else number + 1
        numbers.append(number)
    return numbers


def phases_of_rows(run: RecordedRun, config: MonitorConfig) -> list[str | None]:
    """Return the phase of each row; None where there are no phases."""
    phases = Phases(config.phases, config.statistics.total_steps)
    return [phases.at(step) for step in steps_of(run)]


def proposed_phases(runs: Sequence[RecordedRun], config: MonitorConfig) -> tuple[PhaseConfig, ...]:
    """Return a warm-up and the rest, or nothing where the runs are too different for one warm-up.

    The warm-up lasts as long as the longest of the runs' statistics. A loss that is usual there is alarming
    afterwards, so that one limit for both would be none.
    """
    ends, lengths = [], []
    for run in runs:
        steps = [step for step, row in zip(steps_of(run), run.rows, strict=True) if row.is_step]
        if not steps:
            return ()
        statistics = config.statistics
        if statistics.total_steps is None:
            statistics = statistics.model_copy(update={"total_steps": len(steps)})
        ends.append(steps[min(statistics.effective_warmup_steps, len(steps)) - 1])
        lengths.append(max(steps))
    until = max(ends)
    if until < 1 or 2 * until > min(lengths):
        return ()
    return PhaseConfig(name="warmup", until_step=until), PhaseConfig(name="main")
