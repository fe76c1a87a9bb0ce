"""What one alert leads to: a pure function of the policy, the journal's facts, the alert and the time."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from trainswitch.errors import RunNameError
from trainswitch.intervention.commands import check_run_name
from trainswitch_controller.policy import FINAL_PAUSE, PAUSES, WATCHDOG, AlertRule, Limit, Policy, Rung

Outcome = Literal[
    "acted",
    "observed",
    "awaiting_approval",
    "duplicate",
    "resolved",
    "cooldown",
    "budget",
    "no_policy",
    "stale",
    "invalid_run",
    "watchdog",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SETTLING: frozenset[Outcome] = frozenset(
    {"acted", "observed", "awaiting_approval", "duplicate", "budget", "stale"}
)
"""Outcomes after which an episode is decided for good; a resend of it is a duplicate."""

Cause = Literal["ladder", "budget", "resume", "operator"]
"""Why a command exists."""


@dataclasses.dataclass(frozen=True)
class Trouble:
    """What `decide` needs of an alert."""

    alertname: str
    run: str | None
    """The alert's ``run`` label as it came; None where it has none."""
    starts_at: float
    """Unix seconds."""
    firing: bool = True


@dataclasses.dataclass(frozen=True)
class Taken:
    """The newest rung that was taken for the same trouble of the same run."""

    rung: int
    at: float
    """When it was decided, in Unix seconds."""
    carried_out_at: float | None
    """When the trainer answered; None while it has not."""


@dataclasses.dataclass(frozen=True)
class History:
    """The journal's facts that bear on one alert; times are Unix seconds.

    An intervention counts unless it still awaits approval, or ended ``expired`` or ``superseded``: those the
    trainer never carried out.
    """

    episode_resolved: bool = False
    episode_settled: bool = False
    awaiting: str | None = None
    """Id of a command for the same trouble that awaits approval."""
    last_taken: Taken | None = None
    last_trouble_at: float | None = None
    """When another episode of the same trouble was last heard of."""
    last_intervention_at: float | None = None
    """The run's newest intervention, whatever alert caused it."""
    run_interventions: tuple[float, ...] = ()
    all_interventions: tuple[float, ...] = ()
    budget_pauses: tuple[float, ...] = ()
    """When this run was paused because a budget had ended."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """What becomes of one alert, and why."""

    outcome: Outcome
    reason: str
    rung: int | None = None
    action: str | None = None
    """What is commanded (outcomes acted, awaiting_approval, budget), or would be (observed)."""
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    cause: Cause = "ladder"
    resume_when_resolved: bool = False
    retry_at: float | None = None
    """When to decide again, if the alert is still firing then; set with outcome cooldown."""
    existing_command: str | None = None
    """The command that this alert is already waiting for."""


def decide(policy: Policy, history: History, trouble: Trouble, now: float) -> Decision:
    """Return what `trouble` leads to at time `now` (Unix seconds)."""
    early = _without_policy(history, trouble)
    if early is not None:
        return early
    rule = policy.alerts.get(trouble.alertname)
    if rule is None:
        return Decision("no_policy", f"the policy has no entry for {trouble.alertname[:80]!r}.")
    age = now - trouble.starts_at
    if age > policy.max_alert_age:
        return Decision(
            "stale", f"it began {age:.0f} s ago and max_alert_age is {policy.max_alert_age:.0f} s."
        )
    return (
        _cooling_down(policy, rule, history, now)
        or _already_dealt_with(history, trouble)
        or _act(policy, rule, history, now)
    )


def _without_policy(history: History, trouble: Trouble) -> Decision | None:
    if trouble.alertname == WATCHDOG:
        return Decision("watchdog", "the chain from Prometheus to here is alive.")
    if trouble.run is None:
        return Decision("invalid_run", "the alert has no label 'run': keep it in the rule's expression.")
    try:
        check_run_name(trouble.run)
    except RunNameError as error:
        return Decision("invalid_run", str(error))
    if not trouble.firing:
        return Decision("resolved", "the alert resolved.")
    if history.episode_resolved:
        return Decision("resolved", "this episode had resolved before; only a new one can act.")
    if history.episode_settled:
        return Decision("duplicate", "this episode was decided before.")
    return None


def _cooling_down(policy: Policy, rule: AlertRule, history: History, now: float) -> Decision | None:
    cooldown = policy.cooldown_of(rule)
    if history.last_intervention_at is None or now >= history.last_intervention_at + cooldown:
        return None
    if history.last_taken is None and rule.ladder[0].action in PAUSES:
        # Another trouble than the one that was just answered, and a pause can do no harm: waiting can.
        return None
    ends = history.last_intervention_at + cooldown
    return Decision(
        "cooldown",
        f"the run's last intervention was {now - history.last_intervention_at:.0f} s ago and the cooldown is "
        f"{cooldown:.0f} s; decided again at its end if still firing.",
        retry_at=ends,
    )


def _already_dealt_with(history: History, trouble: Trouble) -> Decision | None:
    """One fault often fires several alerts of one name (one a rank, say): one rung is for all of them."""
    if history.awaiting is not None:
        return Decision(
            "awaiting_approval",
            "a command for the same trouble awaits approval already.",
            existing_command=history.awaiting,
        )
    taken = history.last_taken
    if taken is None:
        return None
    if taken.carried_out_at is None or trouble.starts_at <= taken.carried_out_at:
        return Decision(
            "duplicate", f"it began before rung {taken.rung} for the same trouble was carried out."
        )
    return None


def _act(policy: Policy, rule: AlertRule, history: History, now: float) -> Decision:
    number = _next_rung(policy, rule, history, now)
    spent = _spent(policy, history, now)
    if spent is None:
        wanted = rule.rung(number)
        beyond = number > len(rule.ladder)
        reason = (
            "the ladder's last rung did not end it." if beyond else f"rung {number} of {len(rule.ladder)}."
        )
    else:
        window, reason = spent
        if any(at > now - window for at in history.budget_pauses):
            return Decision("budget", f"{reason} The run was paused for it already.", rung=number)
        wanted = FINAL_PAUSE if policy.budget.when_exhausted == "pause" else Rung(action="pause_and_snapshot")
    mode = rule.mode or policy.mode
    outcome: Outcome = "acted" if spent is None else "budget"
    if mode == "observe":
        outcome = "observed"
    elif mode == "approve":
        outcome = "awaiting_approval"
    return Decision(
        outcome,
        reason,
        rung=number,
        action=wanted.action,
        params=dict(wanted.params),
        cause="ladder" if spent is None else "budget",
        resume_when_resolved=wanted.resume_when_resolved,
    )


def _next_rung(policy: Policy, rule: AlertRule, history: History, now: float) -> int:
    taken = history.last_taken
    if taken is None:
        return 1
    last_seen = max(taken.at, history.last_trouble_at or taken.at)
    if now - last_seen >= policy.ladder_reset:
        return 1
    return min(taken.rung, len(rule.ladder)) + 1


def _spent(policy: Policy, history: History, now: float) -> tuple[float, str] | None:
    """Return the window and the sentence of the first budget that has ended, or None."""
    limits: tuple[tuple[str, Limit, tuple[float, ...]], ...] = (
        ("this run", policy.budget.per_run, history.run_interventions),
        ("all runs together", policy.budget.global_, history.all_interventions),
    )
    for whose, limit, times in limits:
        used = sum(at > now - limit.window for at in times)
        if used >= limit.interventions:
            return limit.window, (
                f"the budget of {limit.interventions} interventions in {limit.window:.0f} s for {whose} is "
                "spent."
            )
    return None
