"""What became of a run, and whether all of them together hold the bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from benchmarks.gauntlet.evidence import Evidence
from benchmarks.gauntlet.spec import Diary, Spec

BAR_RECOVERED = 0.95
BAR_LOST = 0.02
TOLERANCE = 0.05
"""How much worse than the unfaulted twin's a validation loss may be."""


class End(BaseModel):
    """How a run ended."""

    model_config = ConfigDict(frozen=True)

    how: str
    """``finished``, ``stopped``, or why it did not finish."""
    val_loss: float | None = None
    """In nats; None where it never came to be, or is no number."""
    reached: int = 0
    """Steps of the trajectory that it ended with."""
    executed: int = 0
    """Optimizer steps that were taken in all."""
    restarts: int = 0

    def recovered(self, reference: float | None) -> bool:
        """Return whether it finished about as well as the unfaulted twin with its `reference` loss."""
        if self.how != "finished" or self.val_loss is None or reference is None:
            return False
        return self.val_loss <= (1.0 + TOLERANCE) * reference

    def lost(self, steps: int) -> int:
        """Return how many of `steps` were taken in vain, or not at all."""
        return max(0, self.executed - self.reached) + max(0, steps - self.reached)


class Outcome(BaseModel):
    """One run under the stack."""

    model_config = ConfigDict(frozen=True)

    run: str
    fault: str | None
    seed: int
    steps: int
    end: End
    fault_step: int | None = None
    detected: str | None = None
    """The first alert after the fault, or the launcher where a process died before one fired."""
    detected_seconds: float | None = None
    answer: str | None = None
    """What was done first: an action of the policy, or a restart."""
    answer_seconds: float | None = None
    answer_steps: int | None = None
    interventions: tuple[str, ...] = ()
    """All that the policy commanded since the fault."""
    false_interventions: tuple[str, ...] = ()
    """What was commanded of a healthy run, or before the fault."""
    alerts: tuple[str, ...] = ()
    """All warnings and critical alerts, in order."""


class Faulted(BaseModel):
    """A faulted run beside its twins."""

    model_config = ConfigDict(frozen=True)

    outcome: Outcome
    reference: float | None
    """Validation loss of the twin without a fault."""
    unprotected: End

    @property
    def recovered(self) -> bool:
        """Whether the protected run ended as if nothing had happened."""
        return self.outcome.end.recovered(self.reference)

    @property
    def healed_alone(self) -> bool:
        """Whether the unprotected twin did, too: such a fault proves nothing."""
        return self.unprotected.recovered(self.reference)

    @property
    def lost_share(self) -> float:
        """Steps lost, as a share of the run."""
        return self.outcome.end.lost(self.outcome.steps) / self.outcome.steps


def end_of(spec: Spec, diary: Diary) -> End:
    """Return how a run ended, by what its processes told."""
    result, over = diary.result, diary.events("over")
    restarts = len([event for event in diary.events("restart") if not spec.leaves_at])
    if result is None:
        why = over[-1]["why"] if over else "unfinished"
        return End(how=why, executed=diary.executed, restarts=restarts, reached=_reached(diary))
    loss = float(result["val_loss"])
    return End(
        how="stopped" if result["stopped"] else "finished",
        val_loss=loss if math.isfinite(loss) else None,
        reached=int(result["step"]),
        executed=diary.executed,
        restarts=restarts,
    )


def outcome_of(spec: Spec, diary: Diary, evidence: Evidence) -> Outcome:
    """Return what became of a run under the stack."""
    struck = next(iter(diary.events("fault")), None)
    since = struck["at"] if struck is not None else math.inf
    detected = evidence.first_alert(since)
    restarts = [event for event in diary.events("restart") if event["at"] >= since and not spec.leaves_at]
    if restarts and (detected is None or restarts[0]["at"] < detected[0]):
        detected = restarts[0]["at"], "the launcher"
    answers = [(row["finished_at"], row["action"], _steps_of(row, diary)) for row in evidence.applied(since)]
    answers += [(event["at"], "restart", event["executed"]) for event in restarts]
    first = min(answers, default=None)
    return Outcome(
        run=spec.run,
        fault=spec.fault,
        seed=spec.seed,
        steps=spec.steps,
        end=end_of(spec, diary),
        fault_step=struck["step"] if struck is not None else None,
        detected=detected[1] if detected else None,
        detected_seconds=round(detected[0] - since, 1) if detected else None,
        answer=first[1] if first else None,
        answer_seconds=round(first[0] - since, 1) if first else None,
        answer_steps=max(0, first[2] - struck["step"] + 1) if first and struck else None,
        interventions=tuple(row["action"] for row in evidence.commands if row["created_at"] >= since),
        false_interventions=tuple(
            f"{row['action']} for {row['alertname']}"
            for row in evidence.commands
            if row["created_at"] < since
        ),
        alerts=tuple(name for _, name in evidence.alerts),
    )


def problems(faulted: Sequence[Faulted], healthy: Sequence[Outcome]) -> list[str]:
    """Return a sentence for each bar that is missed."""
    found = []
    if faulted:
        recovered = sum(one.recovered for one in faulted)
        if recovered < BAR_RECOVERED * len(faulted):
            found.append(f"{recovered} of {len(faulted)} faulted runs recovered")
        if (lost := median_lost(faulted)) > BAR_LOST:
            found.append(f"the median of the steps lost is {lost:.1%} of a run")
    wrong = sum(len(one.false_interventions) for one in (*healthy, *(one.outcome for one in faulted)))
    if wrong:
        found.append(f"{wrong} interventions on runs without a fault")
    unfinished = [one.run for one in healthy if one.end.how != "finished"]
    if unfinished:
        found.append(f"healthy runs did not finish: {', '.join(unfinished)}")
    return found


def median_lost(faulted: Sequence[Faulted]) -> float:
    """Return the median share of a run's steps that was lost."""
    return statistics.median(one.lost_share for one in faulted)


def _steps_of(command: dict[str, object], diary: Diary) -> int:
    """Return the step at whose end a command was carried out; a rollback's answer has the step it loaded."""
    at = float(str(command["finished_at"]))
    if command["action"] == "rollback":
        near = [event for event in diary.events("rollback") if abs(event["at"] - at) < 5.0]
        if near:
            return int(near[0]["step"])
    return int(str(command["step"] or 0))


def _reached(diary: Diary) -> int:
    """Return the steps of a trajectory that was cut off: since the last start, but those taken back."""
    starts = [event for event in diary.events("start") if event["rank"] == 0]
    if not starts:
        return 0
    begun = starts[-1]
    back = sum(
        event["step"] - event["to"] for event in diary.events("rollback") if event["at"] >= begun["at"]
    )
    reached: int = begun["step"] + diary.executed - begun["executed"] - back
    return max(0, reached)
