"""What one alert leads to: a pure function of the policy, the journal's facts, the alert and the time."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from trainswitch.errors import RunNameError
from trainswitch.intervention.commands import check_run_name
from trainswitch_controller.facts import History, Loaded, Taken, Trouble
from trainswitch_controller.policy import FINAL_PAUSE, PAUSES, WATCHDOG, AlertRule, Limit, Policy, Rung

Outcome = Literal[
    "acted",
    "observed",
    "awaiting_approval",
    "duplicate",
    "resolved",
    "cooldown",
    "held",
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
"""Outcomes after which an episode is decided; a resend is a duplicate, unless its trouble has lasted."""

_PAUSE_LOOK_S = 1.0
"""Least time between two looks whether a paused run is paused still."""

Cause = Literal["ladder", "budget", "resume", "operator"]
"""Why a command exists."""
BudgetScope = Literal["run", "global"]


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
    """When to decide again, if the alert is still firing then; set with outcomes cooldown and held."""
    existing_command: str | None = None
    """The command that this alert is already waiting for."""
    lasted: bool = False
    """The rung is taken because the trouble outlasted the one before."""
    budget_spent: bool = False
    """A budget stands in the way of the rung, whatever the mode makes of that."""


def decide(policy: Policy, history: History, trouble: Trouble, now: float) -> Decision:
    """Return what `trouble` leads to at time `now` (Unix seconds)."""
    early = _without_policy(history, trouble)
    if early is not None:
        return early
    taken = history.last_taken
    covered = taken is not None and taken.covers(trouble.starts_at)
    if history.episode_settled and not covered:
        return Decision("duplicate", "this episode was decided before.")
    rule = policy.alerts.get(trouble.alertname)
    if rule is None:
        return Decision("no_policy", f"the policy has no entry for {trouble.alertname[:80]!r}.")
    if taken is not None and covered:
        waiting = _covered(policy, rule, history, taken, now)
        if waiting is not None:
            return waiting
    elif (age := now - trouble.starts_at) > policy.max_alert_age:
        return Decision(
            "stale", f"it began {age:.0f} s ago and max_alert_age is {policy.max_alert_age:.0f} s."
        )
    return (
        _held(policy, rule, history, now)
        or _cooling_down(policy, rule, history, trouble, now)
        or _awaiting(history)
        or _act(policy, rule, history, trouble, now)
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
    return None


def _covered(policy: Policy, rule: AlertRule, history: History, taken: Taken, now: float) -> Decision | None:
    """Return why a rung that was taken is answer enough, or None if its trouble has outlasted it.

    One fault often fires several alerts of one name (one a rank, say): one rung is for all of them.
    """
    due = escalation_due(policy, rule, history)
    began = f"it began before rung {taken.rung} for the same trouble was carried out"
    if due is None:
        return Decision("duplicate", f"{began}.")
    if now < due:
        return Decision(
            "duplicate", f"{began}; the next one is due in {due - now:.0f} s if still firing.", retry_at=due
        )
    if now - due > policy.max_alert_age:
        return Decision(
            "stale",
            f"the next rung was due {now - due:.0f} s ago and max_alert_age is {policy.max_alert_age:.0f} s.",
        )
    return None


def escalation_due(policy: Policy, rule: AlertRule, history: History) -> float | None:
    """Return when the trouble that was answered last takes the next rung if it lasts; None: it does not.

    A run that was paused or stopped shows the same samples for ever, which says nothing about the trouble. A
    rung that the trainer refused or failed at changed nothing, so nothing but the cooldown has to be waited
    for.
    """
    taken, wait = history.last_taken, policy.escalation_of(rule)
    if taken is None or taken.carried_out_at is None or wait is None or history.awaiting is not None:
        return None
    if taken.applied and taken.action in {*PAUSES, "stop"}:
        return None
    if history.episode_over or _after(rule, taken) in history.tried:
        return None
    wait = wait if taken.applied else 0.0
    ends = [taken.carried_out_at + wait]
    if history.last_intervention_at is not None:
        ends.append(history.last_intervention_at + policy.cooldown_of(rule))
    if history.released_at is not None:
        ends.append(history.released_at + wait)
    return max(ends)


def _held(policy: Policy, rule: AlertRule, history: History, now: float) -> Decision | None:
    if not history.paused:
        return None
    return Decision(
        "held",
        "the run is paused, and waits for whoever resumes it; decided again then if still firing.",
        # A pause ends without a word when the trainer is started again: nobody commands a resume then.
        retry_at=now + max(policy.cooldown_of(rule), _PAUSE_LOOK_S),
    )


def _cooling_down(
    policy: Policy, rule: AlertRule, history: History, trouble: Trouble, now: float
) -> Decision | None:
    cooldown = policy.cooldown_of(rule)
    last, what = history.last_intervention_at, "the run's last intervention"
    released = history.released_at
    # Who resumes a run knows what fires: that gets its time to end. What begins afterwards is news.
    resumed = released is not None and trouble.starts_at <= released
    if released is not None and resumed and (last is None or released > last):
        last, what = released, "the run's resumption"
    if last is None or now >= last + cooldown:
        return None
    if history.last_taken is None and rule.ladder[0].action in PAUSES and not resumed:
        # Another trouble than the one that was just answered, and a pause can do no harm: waiting can.
        return None
    return Decision(
        "cooldown",
        f"{what} was {now - last:.0f} s ago and the cooldown is {cooldown:.0f} s; decided again at its end "
        "if still firing.",
        retry_at=last + cooldown,
    )


def _awaiting(history: History) -> Decision | None:
    if history.awaiting is None:
        return None
    return Decision(
        "awaiting_approval",
        "a command for the same trouble awaits approval already.",
        existing_command=history.awaiting,
    )


def _act(policy: Policy, rule: AlertRule, history: History, trouble: Trouble, now: float) -> Decision:
    lasted = history.last_taken is not None and history.last_taken.covers(trouble.starts_at)
    number = _next_rung(policy, rule, history, now, lasted=lasted)
    spent = _spent(policy, history, now)
    if spent is None:
        wanted, reason = _wanted(policy, rule, history, trouble, number, lasted=lasted)
        if lasted:
            reason = f"it lasts in spite of rung {number - 1}: {reason}"
    else:
        window, reason = spent
        if any(at > now - window for at in history.budget_pauses):
            return Decision(
                "budget", f"{reason} The run was paused for it already.", rung=number, budget_spent=True
            )
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
        lasted=lasted,
        budget_spent=spent is not None,
    )


def _wanted(
    policy: Policy, rule: AlertRule, history: History, trouble: Trouble, number: int, *, lasted: bool
) -> tuple[Rung, str]:
    """Return rung `number` and the sentence that says why, where a rollback did not help a further one."""
    wanted = rule.rung(number)
    if number > len(rule.ladder):
        return wanted, "the ladder's last rung did not end it."
    reason = f"rung {number} of {len(rule.ladder)}."
    if wanted.action != "rollback" or "step" in wanted.params:
        return wanted, reason
    latest = [wanted.params["before_step"]] if "before_step" in wanted.params else []
    if not latest and history.onset_step is not None:
        latest = [history.onset_step]
        reason = f"{reason} It began after step {history.onset_step}, so back to before that."
    loaded = history.last_rollback
    if loaded is not None and _relapsed(policy, loaded, trouble, lasted=lasted):
        if history.rollbacks_in_a_row > 1 or not loaded.step:
            reason = f"{reason} It came back right after rollbacks, so another one would not end it."
            return FINAL_PAUSE, reason
        latest.append(loaded.step - 1)
        reason = f"{reason} It came back right after step {loaded.step} was loaded, so further back."
    if not latest:
        return wanted, reason
    params = {**wanted.params, "before_step": min(latest)}
    if params["before_step"] == history.onset_step:
        params["or_oldest"] = True  # it has seen least of the trouble, and a refusal would help nobody
    return wanted.model_copy(update={"params": params}), reason


def _relapsed(policy: Policy, loaded: Loaded, trouble: Trouble, *, lasted: bool) -> bool:
    """Return whether the run's last rollback loaded a state that has `trouble` in it.

    One fault has many names: a loss that was unstable may explode the next time, so any alert's rollback
    counts. Of trouble that began before it, only what has outlasted an answer of its own is known to be more
    than samples from before.
    """
    if trouble.starts_at > loaded.at + policy.relapse_within:
        return False
    return lasted or trouble.starts_at > loaded.at


def _next_rung(policy: Policy, rule: AlertRule, history: History, now: float, *, lasted: bool = False) -> int:
    """Return the rung that the trouble takes next; one that `lasted` never ended, so none begins again."""
    taken = history.last_taken
    if taken is None:
        return 1
    last_seen = max(taken.at, history.last_trouble_at or taken.at)
    if not lasted and now - last_seen >= policy.ladder_reset:
        return 1
    return _after(rule, taken)


def _after(rule: AlertRule, taken: Taken) -> int:
    return min(taken.rung, len(rule.ladder)) + 1


def budgets(policy: Policy, history: History, now: float) -> tuple[tuple[BudgetScope, Limit, int], ...]:
    """Return each budget with how many interventions of its window are used."""
    found: tuple[tuple[BudgetScope, Limit, tuple[float, ...]], ...] = (
        ("run", policy.budget.per_run, history.run_interventions),
        ("global", policy.budget.global_, history.all_interventions),
    )
    return tuple(
        (scope, limit, sum(at > now - limit.window for at in times)) for scope, limit, times in found
    )


def _spent(policy: Policy, history: History, now: float) -> tuple[float, str] | None:
    """Return the window and the sentence of the first budget that has ended, or None."""
    for scope, limit, used in budgets(policy, history, now):
        if used >= limit.interventions:
            whose = "this run" if scope == "run" else "all runs together"
            return limit.window, (
                f"the budget of {limit.interventions} interventions in {limit.window:.0f} s for {whose} is "
                "spent."
            )
    return None
