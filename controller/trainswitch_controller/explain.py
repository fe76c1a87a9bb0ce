"""What the policy would do about an alert now, and why: the controller's own decision, without its effect."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainswitch_controller.decide import Decision, budgets, decide
from trainswitch_controller.facts import History, Taken, Trouble
from trainswitch_controller.policy import Mode, Policy

ANY_RUN = "any"
"""Stands for the run where none is asked about."""


@dataclasses.dataclass(frozen=True)
class BudgetLeft:
    """How much of a budget is left."""

    scope: str
    """``run``, or ``global`` for all runs together."""
    interventions: int
    window: float
    """Seconds."""
    used: int

    @property
    def left(self) -> int:
        """How many interventions may still be made."""
        return max(0, self.interventions - self.used)


@dataclasses.dataclass(frozen=True)
class Firing:
    """An alert that fires already, and what becomes of it."""

    episode_id: int
    starts_at: float
    decision: Decision


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What would happen if an alert began to fire now; times are Unix seconds."""

    alertname: str
    run: str | None
    """None: judged by the policy alone, as for a run without history."""
    at: float
    decision: Decision
    then: Decision | None
    """What follows at `decision.retry_at` if the alert still fires; None where nothing is waited for."""
    mode: Mode | None
    """None: the policy has no entry for the alert."""
    ladder: tuple[dict[str, Any], ...]
    cooldown: float | None
    cooldown_left: float
    """Seconds until the run may be acted on again."""
    escalate_after: float | None
    """Seconds after which lasting trouble takes the next rung; None: it does not."""
    budgets: tuple[BudgetLeft, ...]
    last_taken: Taken | None
    paused: bool
    firing: tuple[Firing, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        found = dataclasses.asdict(self)
        for shown, budget in zip(found["budgets"], self.budgets, strict=True):
            shown["left"] = budget.left
        return found


def explain(
    policy: Policy, alertname: str, now: float, *, run: str | None = None, history: History | None = None
) -> Explanation:
    """Return what `alertname` would lead to if it began to fire at `now` (Unix seconds)."""
    history = history or History()
    rule = policy.alerts.get(alertname)
    cooldown = policy.cooldown_of(rule) if rule is not None else None
    last = history.last_intervention_at
    trouble = Trouble(alertname, run or ANY_RUN, now)
    decision = decide(policy, history, trouble, now)
    again_at = decision.retry_at
    return Explanation(
        alertname=alertname,
        run=run,
        at=now,
        decision=decision,
        then=None if again_at is None else decide(policy, history, trouble, again_at),
        mode=(rule.mode or policy.mode) if rule is not None else None,
        ladder=tuple(rung.model_dump() for rung in rule.ladder) if rule is not None else (),
        cooldown=cooldown,
        cooldown_left=max(0.0, last + cooldown - now) if last is not None and cooldown is not None else 0.0,
        escalate_after=policy.escalation_of(rule) if rule is not None else None,
        budgets=tuple(
            BudgetLeft(scope, limit.interventions, limit.window, used)
            for scope, limit, used in budgets(policy, history, now)
        ),
        last_taken=history.last_taken,
        paused=history.paused,
    )
