"""Gathers from the journal the facts that `decide` judges by."""

from __future__ import annotations

from sqlalchemy import func, select

from trainswitch_controller.decide import History, Taken
from trainswitch_controller.orders import Unit
from trainswitch_controller.policy import AlertRule
from trainswitch_controller.records import NEVER_CARRIED_OUT, CommandRecord, EpisodeRecord

_COUNTS = (
    CommandRecord.cause.in_(("ladder", "budget")),
    CommandRecord.state.not_in(NEVER_CARRIED_OUT),
)


def gather(unit: Unit, episode: EpisodeRecord) -> History:
    """Return the facts that bear on `episode`, which is in the journal already."""
    rule = unit.policy.alerts.get(episode.alertname)
    if rule is None:
        return History(
            episode_resolved=episode.resolved_at is not None,
            episode_settled=episode.settled,
        )
    due, budget_pauses = _interventions(unit, episode, rule)
    budget = unit.policy.budget
    return History(
        episode_resolved=episode.resolved_at is not None,
        episode_settled=episode.settled,
        awaiting=_awaiting(unit, episode),
        last_taken=_last_taken(unit, episode),
        last_trouble_at=unit.session.scalar(
            select(func.max(EpisodeRecord.last_heard_at)).where(
                EpisodeRecord.run == episode.run,
                EpisodeRecord.alertname == episode.alertname,
                EpisodeRecord.id != episode.id,
            )
        ),
        last_intervention_at=max((at for at, _ in due), default=None),
        run_interventions=tuple(at for at, cause in due if cause == "ladder"),
        all_interventions=tuple(
            unit.session.scalars(
                select(CommandRecord.issued_at).where(
                    *_COUNTS,
                    CommandRecord.cause == "ladder",
                    CommandRecord.issued_at > unit.now - budget.global_.window,
                )
            )
        ),
        budget_pauses=budget_pauses,
    )


def _interventions(
    unit: Unit, episode: EpisodeRecord, rule: AlertRule
) -> tuple[list[tuple[float, str]], tuple[float, ...]]:
    """Return the run's recent interventions with their cause, and its budget pauses, approved or not."""
    budget = unit.policy.budget
    horizon = max(budget.per_run.window, budget.global_.window, unit.policy.cooldown_of(rule))
    rows = unit.session.execute(
        select(CommandRecord.created_at, CommandRecord.issued_at, CommandRecord.cause).where(
            *_COUNTS,
            CommandRecord.run == episode.run,
            func.coalesce(CommandRecord.issued_at, CommandRecord.created_at) > unit.now - horizon,
        )
    ).all()
    due = [(row.issued_at, row.cause) for row in rows if row.issued_at is not None]
    return due, tuple(row.issued_at or row.created_at for row in rows if row.cause == "budget")


def _awaiting(unit: Unit, episode: EpisodeRecord) -> str | None:
    return unit.session.scalar(
        select(CommandRecord.id)
        .where(
            CommandRecord.run == episode.run,
            CommandRecord.alertname == episode.alertname,
            CommandRecord.state == "awaiting_approval",
            CommandRecord.expires_at > unit.now,
        )
        .limit(1)
    )


def _last_taken(unit: Unit, episode: EpisodeRecord) -> Taken | None:
    newest = unit.session.scalar(
        select(CommandRecord)
        .where(
            *_COUNTS,
            CommandRecord.run == episode.run,
            CommandRecord.alertname == episode.alertname,
            CommandRecord.cause == "ladder",
            CommandRecord.seq.is_not(None),
        )
        .order_by(CommandRecord.seq.desc())
        .limit(1)
    )
    if newest is None or newest.rung is None or newest.issued_at is None:
        return None
    return Taken(newest.rung, newest.issued_at, newest.finished_at)
