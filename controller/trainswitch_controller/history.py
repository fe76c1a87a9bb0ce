"""Gathers from the journal, and from the trainer's status file, the facts that `decide` judges by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Integer, bindparam, case, exists, func, or_, select
from sqlalchemy.orm import aliased

from trainswitch_controller.facts import History, Loaded, Taken
from trainswitch_controller.onset import incidents
from trainswitch_controller.policy import AlertRule
from trainswitch_controller.records import NEVER_CARRIED_OUT, CommandRecord, EpisodeRecord
from trainswitch_controller.unit import Unit

_LOOKED_AT = 3
MAX_SKEW_S = 60.0
"""How far in the future a time of the journal may lie. What lies further is of a clock that was wrong, and
nobody waits for that time to come."""

# Built once, with parameters, and of tables where no objects are needed: a storm of alerts asks each of them
# thousands of times.
_command = CommandRecord.__table__.c
_episode = EpisodeRecord.__table__.c
_OF_RUN = _command.run == bindparam("run")
_OF_TROUBLE = (_OF_RUN, _command.alertname == bindparam("alertname"))
_COUNTS = (
    or_(_command.cause == "ladder", _command.cause == "budget"),
    *(_command.state != state for state in NEVER_CARRIED_OUT),
)
_INTERVENTIONS = select(_command.created_at, _command.issued_at, _command.cause).where(
    *_COUNTS,
    _OF_RUN,
    func.coalesce(_command.issued_at, _command.created_at) > bindparam("horizon"),
)
_OF_ALL_RUNS = (
    select(_command.issued_at)
    .where(*_COUNTS, _command.cause == "ladder", _command.issued_at > bindparam("horizon"))
    .order_by(_command.issued_at.desc())
    .limit(bindparam("most"))
)
_RUNGS = (
    select(CommandRecord)
    .where(
        *_COUNTS,
        *_OF_TROUBLE,
        CommandRecord.cause == "ladder",
        CommandRecord.seq.is_not(None),
        CommandRecord.rung.is_not(None),
    )
    .order_by(CommandRecord.seq.desc())
    .limit(_LOOKED_AT)
)
_ROLLBACKS = (
    select(CommandRecord)
    .where(
        _OF_RUN,
        CommandRecord.action == "rollback",
        CommandRecord.state == "applied",
        CommandRecord.seq.is_not(None),
    )
    .order_by(CommandRecord.seq.desc())
    .limit(_LOOKED_AT)
)
_COMMANDED = select(_command.id, _command.episode_id, _command.rung, _command.created_at).where(
    *_OF_TROUBLE, _command.rung.is_not(None)
)
_AWAITING = (
    select(_command.id)
    .where(
        *_OF_TROUBLE,
        _command.state == "awaiting_approval",
        _command.expires_at > bindparam("now"),
    )
    .limit(1)
)
_RELEASED = select(
    func.max(  # of the trainer's clock, if that can be right
        case(
            (_command.finished_at > bindparam("now") + MAX_SKEW_S, _command.issued_at),
            else_=_command.finished_at,
        )
    )
).where(_OF_RUN, _command.action == "resume", _command.state == "applied")
_OTHERS_HEARD = (
    select(_episode.last_heard_at)
    .where(
        _episode.run == bindparam("run"),
        _episode.alertname == bindparam("alertname"),
        _episode.id != bindparam("episode", type_=Integer),
    )
    .order_by(_episode.last_heard_at.desc())
    .limit(1)
)
_NEWER = select(_episode.id).where(
    _episode.fingerprint == bindparam("fingerprint"), _episode.starts_at > bindparam("starts_at")
)
_later = aliased(EpisodeRecord)
_LASTING = (
    select(EpisodeRecord)
    .where(
        EpisodeRecord.run == bindparam("run"),
        EpisodeRecord.resolved_at.is_(None),
        ~exists().where(
            _later.fingerprint == EpisodeRecord.fingerprint, _later.starts_at > EpisodeRecord.starts_at
        ),
    )
    .order_by(EpisodeRecord.id)
)
_FACTS = select(
    _AWAITING.scalar_subquery().label("awaiting"),
    _RELEASED.scalar_subquery().label("released_at"),
    _OTHERS_HEARD.scalar_subquery().label("last_trouble_at"),
    _NEWER.limit(1).scalar_subquery().label("newer"),
)


def gather(unit: Unit, episode: EpisodeRecord) -> History:
    """Return the facts that bear on `episode`; what was changed of other ones before has to be flushed."""
    rule = unit.policy.alerts.get(episode.alertname)
    if rule is None:
        return History(
            episode_resolved=episode.resolved_at is not None,
            episode_settled=episode.settled,
        )
    with unit.session.no_autoflush:  # a new episode is stored with what is decided about it, once
        return _gather(unit, episode, rule)


def _gather(unit: Unit, episode: EpisodeRecord, rule: AlertRule) -> History:
    due, budget_pauses = _interventions(unit, episode, rule)
    rungs = rungs_taken(unit, episode.run, episode.alertname)
    taken = _taken(unit, rungs[0]) if rungs else None
    facts = unit.session.execute(
        _FACTS,
        {
            "run": episode.run,
            "alertname": episode.alertname,
            "now": unit.now,
            "episode": episode.id or 0,  # an imagined one has none
            "fingerprint": episode.fingerprint,
            "starts_at": episode.starts_at,
        },
    ).one()
    last_rollback, in_a_row = _rollbacks(unit, episode, rule)
    undecided = not episode.settled or (taken is not None and taken.covers(episode.starts_at))
    budget = unit.policy.budget
    return History(
        episode_resolved=episode.resolved_at is not None,
        episode_settled=episode.settled,
        episode_over=_known(unit, episode) and (_unheard(unit, episode) or facts.newer is not None),
        awaiting=facts.awaiting,
        last_taken=taken,
        tried=_tried(unit, episode, rungs),
        onset_step=_onset_step(unit, episode, rule),
        last_rollback=last_rollback,
        rollbacks_in_a_row=in_a_row,
        last_trouble_at=facts.last_trouble_at,
        last_intervention_at=max((at for at, _ in due if at <= unit.now + MAX_SKEW_S), default=None),
        paused=undecided and _paused(unit, episode),
        released_at=None if facts.released_at is None else min(facts.released_at, unit.now),
        run_interventions=tuple(at for at, cause in due if cause == "ladder"),
        all_interventions=tuple(
            unit.session.scalars(
                _OF_ALL_RUNS,
                {
                    "horizon": unit.now - budget.global_.window,
                    "most": budget.global_.interventions,  # more of them would change nothing
                },
            )
        ),
        budget_pauses=budget_pauses,
    )


def gather_all(unit: Unit, episodes: Sequence[EpisodeRecord]) -> list[History]:
    """Return the facts that bear on each of `episodes`, which are all `lasting` and of one trouble.

    They are gathered once: a fault may fire an alert for each of a thousand ranks. What only a new rung needs
    (`History.last_trouble_at`) is that of the first.
    """
    first = gather(unit, episodes[0])
    rungs = rungs_taken(unit, episodes[0].run, episodes[0].alertname)
    commanded = _commanded(unit, episodes[0]) if rungs else ()
    since = carried_out_at(unit, rungs[0]) if rungs else None
    return [
        dataclasses.replace(
            first,
            episode_settled=episode.settled,
            tried=_tried_by(episode, commanded, rungs, since),
        )
        for episode in episodes
    ]


def _interventions(
    unit: Unit, episode: EpisodeRecord, rule: AlertRule
) -> tuple[list[tuple[float, str]], tuple[float, ...]]:
    """Return the run's recent interventions with their cause, and its budget pauses, approved or not."""
    budget = unit.policy.budget
    horizon = max(budget.per_run.window, budget.global_.window, unit.policy.cooldown_of(rule))
    rows = unit.session.execute(_INTERVENTIONS, {"run": episode.run, "horizon": unit.now - horizon}).all()
    due = [(row.issued_at, row.cause) for row in rows if row.issued_at is not None]
    return due, tuple(row.issued_at or row.created_at for row in rows if row.cause == "budget")


def rungs_taken(unit: Unit, run: str, alertname: str) -> Sequence[CommandRecord]:
    """Return the newest rungs that were taken for a trouble, newest first: as many as `decide` looks at."""
    return unit.session.scalars(_RUNGS, {"run": run, "alertname": alertname}).all()


def lasting(unit: Unit, run: str, alertname: str | None = None) -> list[EpisodeRecord]:
    """Return the run's episodes, or those of one trouble, that have not resolved and may be firing still.

    Alertmanager repeats what fires, and begins anew only what had ended; a message may be lost all the same.
    """
    query = _LASTING if alertname is None else _LASTING.where(EpisodeRecord.alertname == alertname)
    found = unit.session.scalars(query, {"run": run}).all()
    return [
        episode
        for episode in found
        if episode.alertname not in unit.policy.alerts or not _unheard(unit, episode)
    ]


def _known(unit: Unit, episode: EpisodeRecord) -> bool:
    """Return whether the policy names `episode` and it is not only imagined."""
    return episode.alertname in unit.policy.alerts and episode in unit.session


def _unheard(unit: Unit, episode: EpisodeRecord) -> bool:
    """Return whether nothing was heard of `episode` for longer than what fires is repeated."""
    wait = unit.policy.escalation_of(unit.policy.alerts[episode.alertname]) or 0.0
    return episode.last_heard_at < unit.now - unit.policy.max_alert_age - wait


def carried_out_at(unit: Unit, command: CommandRecord) -> float | None:
    """Return when the trainer answered `command`, in Unix seconds; None while it has not.

    The answer's time is of the trainer's clock: it is not believed to be before the command or after now.
    Where it lies far in the future the trainer's clock is wrong, and the command's time is taken; where that
    does, ours was. Nor was it before its own alert began, whatever the clock of Prometheus says.
    """
    if command.finished_at is None:
        return None
    times = (command.finished_at, command.issued_at or command.created_at)
    at = min(max((one for one in times if one <= unit.now + MAX_SKEW_S), default=unit.now), unit.now)
    own = unit.session.get(EpisodeRecord, command.episode_id) if command.episode_id is not None else None
    return at if own is None else max(at, own.starts_at)


def _taken(unit: Unit, command: CommandRecord) -> Taken:
    assert command.rung is not None  # by the conditions of `rungs_taken`, as is the next
    assert command.issued_at is not None
    return Taken(
        command.rung,
        command.issued_at,
        carried_out_at(unit, command),
        action=command.action,
        applied=command.state == "applied",
    )


def _tried(unit: Unit, episode: EpisodeRecord, rungs: Sequence[CommandRecord]) -> frozenset[int]:
    """Return the rungs that this episode had a command for, or its trouble since the last one was taken."""
    if not rungs:
        return frozenset()
    return _tried_by(episode, _commanded(unit, episode), rungs, carried_out_at(unit, rungs[0]))


def _commanded(unit: Unit, episode: EpisodeRecord) -> Sequence[Any]:
    """Return every rung that was commanded or proposed for the trouble of `episode`."""
    return unit.session.execute(_COMMANDED, {"run": episode.run, "alertname": episode.alertname}).all()


def _tried_by(
    episode: EpisodeRecord, commanded: Sequence[Any], rungs: Sequence[CommandRecord], since: float | None
) -> frozenset[int]:
    return frozenset(
        one.rung
        for one in commanded
        if one.episode_id == episode.id
        or (since is not None and one.created_at >= since and one.id != rungs[0].id)
    )


def _onset_step(unit: Unit, episode: EpisodeRecord, rule: AlertRule) -> int | None:
    """Return the step that a rollback for `episode` is to go back to or before; None where it is unknown."""
    if episode not in unit.session or not _rolls_back(rule):
        return None
    incident = incidents.of_episode(unit.session, episode.fingerprint, episode.starts_at)
    return incident.onset_step if incident is not None else None


def _rollbacks(unit: Unit, episode: EpisodeRecord, rule: AlertRule) -> tuple[Loaded | None, int]:
    """Return the run's newest rollback, and how many followed one right after the other up to it."""
    if not _rolls_back(rule):
        return None, 0
    policy = unit.policy
    wait = max(policy.cooldown_of(rule), policy.escalation_of(rule) or 0.0)
    newest: Loaded | None = None
    count = 0
    taken_at: float | None = None
    for command in unit.session.scalars(_ROLLBACKS, {"run": episode.run}):
        loaded_at = carried_out_at(unit, command)
        if loaded_at is None or (
            taken_at is not None and taken_at > loaded_at + policy.relapse_within + wait
        ):
            break
        newest = newest or Loaded(loaded_at, command.step)
        count += 1
        taken_at = command.created_at
    return newest, count


def _rolls_back(rule: AlertRule) -> bool:
    return any(rung.action == "rollback" for rung in rule.ladder)


def _paused(unit: Unit, episode: EpisodeRecord) -> bool:
    status = unit.status(episode.run)
    return status is not None and status.state == "paused"
