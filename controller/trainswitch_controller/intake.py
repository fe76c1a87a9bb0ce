"""Takes a delivery into the journal: its episodes, what was decided about each alert, and the commands."""

from __future__ import annotations

import dataclasses
from typing import cast

from sqlalchemy import ColumnElement, Table, bindparam, insert, or_, select

from trainswitch_controller import followup, orders
from trainswitch_controller.alerts import Alert, Webhook
from trainswitch_controller.decide import SETTLING, Decision, Outcome, decide
from trainswitch_controller.facts import History, Trouble
from trainswitch_controller.history import MAX_SKEW_S, gather
from trainswitch_controller.policy import Policy
from trainswitch_controller.records import DecisionRecord, DeliveryRecord, EpisodeRecord
from trainswitch_controller.unit import Unit

MAX_NAME = 1000
"""Longest receiver or group key that is kept of a delivery."""
_TOGETHER = 4
"""How many episodes are decided again in one transaction."""

# Built once, and of tables instead of classes: a storm brings thousands of each.
_NEW_DELIVERY = insert(cast("Table", DeliveryRecord.__table__)).returning(DeliveryRecord.__table__.c.id)
_NEW_DECISION = insert(cast("Table", DecisionRecord.__table__))
_SAME_EPISODE = select(EpisodeRecord).where(
    EpisodeRecord.fingerprint == bindparam("fingerprint"), EpisodeRecord.starts_at == bindparam("starts_at")
)

_LAST_OUTCOME = (
    select(DecisionRecord.outcome)
    .where(DecisionRecord.episode_id == bindparam("episode"))
    .order_by(DecisionRecord.id.desc())
    .limit(1)
)


@dataclasses.dataclass(frozen=True)
class Judged:
    """What became of one alert."""

    alertname: str
    run: str | None
    outcome: Outcome
    reason: str
    action: str | None
    """What was commanded, or would have been."""
    command_id: str | None
    new_episode_age: float | None
    """Seconds from startsAt to the decision, of a firing alert that the journal had not seen before."""
    budget_spent: bool = False
    """A budget stood in the way of what the policy would have done."""


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What became of one delivery."""

    delivery: int
    truncated_alerts: int
    judged: tuple[Judged, ...]

    @property
    def rejected(self) -> bool:
        """Whether no alert of it can ever be accepted."""
        return bool(self.judged) and all(one.outcome == "invalid_run" for one in self.judged)


def receive(unit: Unit, webhook: Webhook) -> Receipt:
    """Put `webhook` with everything that follows from it into the journal."""
    delivery: int = unit.session.scalars(
        _NEW_DELIVERY,
        {
            "received_at": unit.now,
            "receiver": webhook.receiver[:MAX_NAME],
            "group_key": webhook.group_key[:MAX_NAME],
            "alerts": len(webhook.alerts),
            "truncated_alerts": webhook.truncated_alerts,
        },
    ).one()
    judged = tuple(_take(unit, delivery, alert) for alert in webhook.alerts)
    return Receipt(delivery, webhook.truncated_alerts, judged)


def is_due(policy: Policy, now: float) -> ColumnElement[bool]:
    """Return the condition that an episode is to be decided again at `now` (Unix seconds).

    What waits for longer than anything can is looked at, too: the clock was set back since it was put off.
    """
    rules = policy.alerts.values()
    waits = (max(policy.cooldown_of(rule), policy.escalation_of(rule) or 0.0) for rule in rules)
    never = now + max(waits, default=0.0) + MAX_SKEW_S
    return or_(EpisodeRecord.retry_at <= now, EpisodeRecord.retry_at > never)


def reconsider(unit: Unit, beyond: int = 0) -> tuple[list[Judged], int | None]:
    """Decide again about episodes that have not resolved and whose time to be looked at has come.

    Args:
        unit: the transaction; it is short, so that deliveries need not wait for many of them.
        beyond: id of the last one that was looked at.

    Returns:
        What was decided, and the id beyond which there may be more; None where there are none.
    """
    due = unit.session.scalars(
        select(EpisodeRecord)
        .where(
            EpisodeRecord.id > beyond,
            is_due(unit.policy, unit.now),
            EpisodeRecord.resolved_at.is_(None),
        )
        .order_by(EpisodeRecord.id)
        .limit(_TOGETHER)
    ).all()
    judged = []
    for episode in due:
        trouble = Trouble(episode.alertname, episode.run, episode.starts_at)
        decision = decide(unit.policy, gather(unit, episode), trouble, unit.now)
        if decision.outcome == "held" == unit.session.scalar(_LAST_OUTCOME, {"episode": episode.id}):
            episode.retry_at = decision.retry_at  # paused still: no news, however often it is looked at
            continue
        judged.append(_carry_out(unit, None, trouble, episode, decision))
    return judged, due[-1].id if len(due) == _TOGETHER else None


def _take(unit: Unit, delivery: int, alert: Alert) -> Judged:
    trouble = Trouble(alert.name, alert.labels.get("run"), alert.started, alert.status == "firing")
    decision = decide(unit.policy, History(), trouble, unit.now)
    if decision.outcome in {"watchdog", "invalid_run"}:
        return _carry_out(unit, delivery, trouble, None, decision)
    episode, is_new = _episode(unit, alert)
    if trouble.firing:  # of one that has resolved, nothing else matters
        history = gather(unit, episode)
        decision = decide(unit.policy, history, trouble, unit.now)
        if is_new and history.last_taken is not None:
            followup.after_firing(unit, episode)
    judged = _carry_out(unit, delivery, trouble, episode, decision)
    if is_new and trouble.firing:
        return dataclasses.replace(judged, new_episode_age=max(0.0, unit.now - trouble.starts_at))
    return judged


def _episode(unit: Unit, alert: Alert) -> tuple[EpisodeRecord, bool]:
    """Return the alert's episode, brought up to date, and whether it is new."""
    same = {"fingerprint": alert.fingerprint, "starts_at": alert.started}
    episode = unit.session.scalar(_SAME_EPISODE, same)
    is_new = episode is None
    if episode is None:
        episode = EpisodeRecord(
            fingerprint=alert.fingerprint,
            starts_at=alert.started,
            alertname=alert.name,
            run=alert.labels["run"],
            severity=alert.labels.get("severity", ""),
            labels=alert.labels,
            annotations=alert.annotations,
            received_at=unit.now,
            settled=False,
        )
        unit.session.add(episode)
    episode.last_heard_at = unit.now
    return episode, is_new


def _carry_out(
    unit: Unit,
    delivery: int | None,
    trouble: Trouble,
    episode: EpisodeRecord | None,
    decision: Decision,
) -> Judged:
    command_id = decision.existing_command
    if episode is not None:
        command_id = _change_episode(unit, episode, trouble, decision) or command_id
    unit.session.execute(
        _NEW_DECISION,
        {
            "at": unit.now,
            "delivery_id": delivery,
            "episode_id": episode.id if episode else None,
            "alertname": trouble.alertname,
            "run": trouble.run,
            "outcome": decision.outcome,
            "reason": decision.reason,
            "rung": decision.rung,
            "action": decision.action,
            "params": decision.params,
            "command_id": command_id,
        },
    )
    return Judged(
        alertname=trouble.alertname,
        run=trouble.run,
        outcome=decision.outcome,
        reason=decision.reason,
        action=decision.action,
        command_id=command_id,
        new_episode_age=None,
        budget_spent=decision.budget_spent,
    )


def _change_episode(unit: Unit, episode: EpisodeRecord, trouble: Trouble, decision: Decision) -> str | None:
    """Bring `episode` into the state that follows from `decision`; return the command issued, if any."""
    episode.retry_at = decision.retry_at
    episode.settled = episode.settled or decision.outcome in SETTLING
    unit.session.flush()
    if not trouble.firing:
        if episode.resolved_at is None:
            episode.resolved_at = unit.now
            followup.after_resolution(unit, episode)
        resume = orders.resume_if_due(unit, episode)
        return resume.id if resume else None
    if decision.lasted:
        followup.after_lasting(unit, episode)
    if decision.action is None or decision.outcome == "observed":
        return None
    summary = episode.annotations.get("summary", "").strip()
    command = orders.issue(
        unit,
        run=episode.run,
        action=decision.action,
        params=decision.params,
        reason=" ".join(part for part in (f"{episode.alertname}:", summary, decision.reason) if part),
        cause=decision.cause,
        episode=episode,
        rung=decision.rung,
        resume_when_resolved=decision.resume_when_resolved,
        awaiting=decision.outcome == "awaiting_approval",
    )
    return command.id
