"""Takes a delivery into the journal: its episodes, what was decided about each alert, and the commands."""

from __future__ import annotations

import dataclasses

from sqlalchemy import select

from trainswitch_controller import followup, orders
from trainswitch_controller.alerts import Alert, Webhook
from trainswitch_controller.decide import SETTLING, Decision, History, Outcome, Trouble, decide
from trainswitch_controller.history import gather
from trainswitch_controller.records import DecisionRecord, DeliveryRecord, EpisodeRecord
from trainswitch_controller.unit import Unit

MAX_NAME = 1000
"""Longest receiver or group key that is kept of a delivery."""


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
    delivery = DeliveryRecord(
        received_at=unit.now,
        receiver=webhook.receiver[:MAX_NAME],
        group_key=webhook.group_key[:MAX_NAME],
        alerts=len(webhook.alerts),
        truncated_alerts=webhook.truncated_alerts,
    )
    unit.session.add(delivery)
    unit.session.flush()
    judged = tuple(_take(unit, delivery, alert) for alert in webhook.alerts)
    return Receipt(delivery.id, webhook.truncated_alerts, judged)


def reconsider(unit: Unit) -> list[Judged]:
    """Decide again about every episode that has not resolved and whose time to be looked at has come."""
    due = unit.session.scalars(
        select(EpisodeRecord)
        .where(EpisodeRecord.retry_at <= unit.now, EpisodeRecord.resolved_at.is_(None))
        .order_by(EpisodeRecord.id)
    ).all()
    judged = []
    for episode in due:
        trouble = Trouble(episode.alertname, episode.run, episode.starts_at)
        decision = decide(unit.policy, gather(unit, episode), trouble, unit.now)
        judged.append(_carry_out(unit, None, trouble, episode, decision))
    return judged


def _take(unit: Unit, delivery: DeliveryRecord, alert: Alert) -> Judged:
    trouble = Trouble(alert.name, alert.labels.get("run"), alert.started, alert.status == "firing")
    decision = decide(unit.policy, History(), trouble, unit.now)
    if decision.outcome in {"watchdog", "invalid_run"}:
        return _carry_out(unit, delivery, trouble, None, decision)
    episode, is_new = _episode(unit, alert)
    if is_new and trouble.firing:
        followup.after_firing(unit, episode)
    decision = decide(unit.policy, gather(unit, episode), trouble, unit.now)
    judged = _carry_out(unit, delivery, trouble, episode, decision)
    if is_new and trouble.firing:
        return dataclasses.replace(judged, new_episode_age=max(0.0, unit.now - trouble.starts_at))
    return judged


def _episode(unit: Unit, alert: Alert) -> tuple[EpisodeRecord, bool]:
    """Return the alert's episode, brought up to date, and whether it is new."""
    episode = unit.session.scalar(
        select(EpisodeRecord).where(
            EpisodeRecord.fingerprint == alert.fingerprint, EpisodeRecord.starts_at == alert.started
        )
    )
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
    unit.session.flush()
    return episode, is_new


def _carry_out(
    unit: Unit,
    delivery: DeliveryRecord | None,
    trouble: Trouble,
    episode: EpisodeRecord | None,
    decision: Decision,
) -> Judged:
    command_id = decision.existing_command
    if episode is not None:
        command_id = _change_episode(unit, episode, trouble, decision) or command_id
    unit.session.add(
        DecisionRecord(
            at=unit.now,
            delivery_id=delivery.id if delivery else None,
            episode_id=episode.id if episode else None,
            alertname=trouble.alertname,
            run=trouble.run,
            outcome=decision.outcome,
            reason=decision.reason,
            rung=decision.rung,
            action=decision.action,
            params=decision.params,
            command_id=command_id,
        )
    )
    unit.session.flush()
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
