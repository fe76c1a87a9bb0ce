"""Gathers from the journal, and from the trainer's status file, the facts that `decide` judges by."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import false, func, select

from trainswitch_controller.decide import History, Taken
from trainswitch_controller.policy import AlertRule
from trainswitch_controller.records import NEVER_CARRIED_OUT, CommandRecord, EpisodeRecord
from trainswitch_controller.unit import Unit

_COUNTS = (
    CommandRecord.cause.in_(("ladder", "budget")),
    CommandRecord.state.not_in(NEVER_CARRIED_OUT),
)
_LOOKED_AT = 3


def gather(unit: Unit, episode: EpisodeRecord) -> History:
    """Return the facts that bear on `episode`, which is in the journal already."""
    rule = unit.policy.alerts.get(episode.alertname)
    if rule is None:
        return History(
            episode_resolved=episode.resolved_at is not None,
            episode_settled=episode.settled,
        )
    due, budget_pauses = _interventions(unit, episode, rule)
    rungs = rungs_taken(unit, episode.run, episode.alertname)
    taken = _taken(unit, rungs[0]) if rungs else None
    undecided = not episode.settled or (taken is not None and taken.covers(episode.starts_at))
    budget = unit.policy.budget
    return History(
        episode_resolved=episode.resolved_at is not None,
        episode_settled=episode.settled,
        episode_over=is_over(unit, episode),
        awaiting=_awaiting(unit, episode),
        last_taken=taken,
        tried=_tried(unit, episode, rungs),
        rollbacks_in_a_row=_rollbacks_in_a_row(unit, rule, rungs),
        last_trouble_at=unit.session.scalar(
            select(func.max(EpisodeRecord.last_heard_at)).where(
                EpisodeRecord.run == episode.run,
                EpisodeRecord.alertname == episode.alertname,
                EpisodeRecord.id != episode.id,
            )
        ),
        last_intervention_at=max((at for at, _ in due), default=None),
        paused=undecided and _paused(unit, episode),
        released_at=unit.session.scalar(
            select(func.max(CommandRecord.finished_at)).where(
                CommandRecord.run == episode.run,
                CommandRecord.action == "resume",
                CommandRecord.state == "applied",
            )
        ),
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


def rungs_taken(unit: Unit, run: str, alertname: str) -> Sequence[CommandRecord]:
    """Return the newest rungs that were taken for a trouble, newest first: as many as `decide` looks at."""
    return unit.session.scalars(
        select(CommandRecord)
        .where(
            *_COUNTS,
            CommandRecord.run == run,
            CommandRecord.alertname == alertname,
            CommandRecord.cause == "ladder",
            CommandRecord.seq.is_not(None),
            CommandRecord.rung.is_not(None),
        )
        .order_by(CommandRecord.seq.desc())
        .limit(_LOOKED_AT)
    ).all()


def is_over(unit: Unit, episode: EpisodeRecord) -> bool:
    """Return whether `episode` cannot be firing any more, although nobody said that it resolved.

    Alertmanager repeats what fires, and begins anew only what had ended; a message may be lost all the same.
    """
    rule = unit.policy.alerts.get(episode.alertname)
    if rule is None or episode not in unit.session:  # as where an alert is only imagined
        return False
    wait = unit.policy.escalation_of(rule) or 0.0
    if episode.last_heard_at < unit.now - unit.policy.max_alert_age - wait:
        return True
    newer = select(EpisodeRecord.id).where(
        EpisodeRecord.fingerprint == episode.fingerprint, EpisodeRecord.starts_at > episode.starts_at
    )
    return unit.session.scalar(newer.limit(1)) is not None


def carried_out_at(unit: Unit, command: CommandRecord) -> float | None:
    """Return when the trainer answered `command`, in Unix seconds; None while it has not.

    The answer's time is of the trainer's clock: it is not believed to be before the command or after now.
    """
    if command.finished_at is None:
        return None
    return min(max(command.finished_at, command.issued_at or command.created_at), unit.now)


def _taken(unit: Unit, command: CommandRecord) -> Taken:
    assert command.rung is not None  # by the conditions of `rungs_taken`, as is the next
    assert command.issued_at is not None
    return Taken(
        command.rung,
        command.issued_at,
        carried_out_at(unit, command),
        action=command.action,
        applied=command.state == "applied",
        step=command.step,
    )


def _tried(unit: Unit, episode: EpisodeRecord, rungs: Sequence[CommandRecord]) -> frozenset[int]:
    """Return the rungs that this episode had a command for, or its trouble since the last one was taken."""
    if not rungs:
        return frozenset()
    since = carried_out_at(unit, rungs[0])
    later = (CommandRecord.created_at >= since) if since is not None else false()
    found = unit.session.scalars(
        select(CommandRecord.rung).where(
            CommandRecord.run == episode.run,
            CommandRecord.alertname == episode.alertname,
            CommandRecord.id != rungs[0].id,
            CommandRecord.rung.is_not(None),
            later,
        )
    )
    own = unit.session.scalars(
        select(CommandRecord.rung).where(
            CommandRecord.episode_id == episode.id, CommandRecord.rung.is_not(None)
        )
    )
    return frozenset(rung for rung in (*found, *own) if rung is not None)


def _rollbacks_in_a_row(unit: Unit, rule: AlertRule, rungs: Sequence[CommandRecord]) -> int:
    policy = unit.policy
    wait = max(policy.cooldown_of(rule), policy.escalation_of(rule) or 0.0)
    count = 0
    taken_at: float | None = None
    for command in rungs:
        loaded_at = carried_out_at(unit, command)
        if command.action != "rollback" or command.state != "applied" or loaded_at is None:
            break
        if taken_at is not None and taken_at > loaded_at + policy.relapse_within + wait:
            break
        count += 1
        taken_at = command.created_at
    return count


def _paused(unit: Unit, episode: EpisodeRecord) -> bool:
    status = unit.status(episode.run)
    return status is not None and status.state == "paused"
