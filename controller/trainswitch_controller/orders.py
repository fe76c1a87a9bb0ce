"""The life of a command in the journal: issued, approved, numbered, written, finished.

Every function works inside the caller's transaction and notes the changes of state in it, so that metrics
and log speak only of what was committed.
"""

from __future__ import annotations

import uuid
from typing import Any

from sqlalchemy import func, select

from trainswitch.errors import CommandError
from trainswitch.intervention.commands import ACTIONS, Command, checked_params
from trainswitch_controller import followup, runs
from trainswitch_controller.decide import Cause
from trainswitch_controller.errors import Conflict, NotFound, Unprocessable
from trainswitch_controller.records import UNFINISHED_STATES, CommandRecord, CommandState, EpisodeRecord
from trainswitch_controller.unit import Unit
from trainswitch_controller.validation import storable

MAX_UNFINISHED = 100
"""Operator commands that one run may have unfinished; keeps ``commands.json`` far below its size limit."""
MAX_REASON = 500
_WHERE_CUSTOM = "The run's trainer has registered no such action, and none is in the policy's custom_actions."


def issue(
    unit: Unit,
    *,
    run: str,
    action: str,
    params: dict[str, Any],
    reason: str,
    cause: Cause,
    episode: EpisodeRecord | None = None,
    rung: int | None = None,
    resume_when_resolved: bool = False,
    awaiting: bool = False,
) -> CommandRecord:
    """Add a command to the journal, numbered and due at once, or waiting for approval."""
    command = CommandRecord(
        id=uuid.uuid4().hex,
        run=run,
        seq=None if awaiting else next_seq(unit, run),
        action=action,
        params=params,
        reason=reason[:MAX_REASON],
        cause=cause,
        alertname=episode.alertname if episode else None,
        episode_id=episode.id if episode else None,
        rung=rung,
        resume_when_resolved=resume_when_resolved,
        created_at=unit.now,
        issued_at=None if awaiting else unit.now,
        expires_at=unit.now + unit.policy.command_ttl,
    )
    unit.enter(command, "awaiting_approval" if awaiting else "pending")
    unit.session.add(command)
    unit.session.flush()
    return command


def order(unit: Unit, run: str, action: str, params: dict[str, Any], reason: str) -> CommandRecord:
    """Issue an operator's command; cooldowns and budgets do not apply to it.

    Raises:
        NotFound: the run has no folder.
        Unprocessable: the action or a parameter is not valid.
        Conflict: the run has too many unfinished commands.
    """
    if not runs.has_folder(unit.control_dir, run):
        raise NotFound(f"run {run!r} has no folder in {unit.control_dir}: is its trainer started?")
    status = unit.status(run)
    custom = {*unit.policy.custom_actions, *(status.actions if status is not None else ())}
    try:
        params = checked_params(action, params, custom=sorted(custom - ACTIONS.keys()), where=_WHERE_CUSTOM)
    except CommandError as error:
        raise Unprocessable(str(error)) from None
    unfinished = unit.session.scalar(
        select(func.count()).where(CommandRecord.run == run, CommandRecord.state.in_(UNFINISHED_STATES))
    )
    if (unfinished or 0) >= MAX_UNFINISHED:
        raise Conflict(
            f"run {run!r} has {unfinished} unfinished commands: wait until its trainer has answered some."
        )
    return issue(
        unit,
        run=run,
        action=action,
        params=params,
        reason=reason,
        cause="operator",
    )


def approve(unit: Unit, command_id: str) -> CommandRecord:
    """Make a command due that awaited approval; its time to live begins now.

    Raises:
        NotFound: there is no such command.
        Conflict: it does not await approval, or no longer.
    """
    command = _awaiting(unit, command_id)
    command.seq = next_seq(unit, command.run)
    command.issued_at = unit.now
    command.expires_at = unit.now + unit.policy.command_ttl
    unit.enter(command, "pending")
    return command


def reject(unit: Unit, command_id: str, reason: str) -> CommandRecord:
    """End a command that awaited approval; its episode does not propose it again.

    Raises:
        NotFound: there is no such command.
        Conflict: it does not await approval, or no longer.
    """
    command = _awaiting(unit, command_id)
    detail = f"an operator rejected it{f': {reason}' if reason else '.'}"
    finish(unit, command, "rejected", at=unit.now, detail=detail)
    return command


def _awaiting(unit: Unit, command_id: str) -> CommandRecord:
    command = unit.session.get(CommandRecord, command_id)
    if command is None:
        raise NotFound(f"there is no command {command_id[:80]!r}.")
    if command.state != "awaiting_approval" or command.expires_at <= unit.now:
        state = "expired" if command.state == "awaiting_approval" else command.state
        raise Conflict(f"command {command_id!r} is {state} and does not await approval.")
    return command


def adopt(unit: Unit, run: str, command: Command, *, epoch: int, at: float) -> None:
    """Add a command that ``commands.json`` holds since `at` (Unix seconds) and the journal does not know."""
    record = CommandRecord(
        id=storable(command.id),
        run=run,
        seq=command.seq,
        epoch=epoch,
        action=storable(command.action),
        params=command.params,
        reason=storable(command.reason)[:MAX_REASON],
        cause="operator",
        created_at=unit.now,
        issued_at=command.issued_at,
        expires_at=command.expires_at,
        written_at=at,
        detail="found in commands.json; the journal did not know it.",
    )
    unit.enter(record, "written")
    unit.session.add(record)


def next_seq(unit: Unit, run: str) -> int:
    """Return the run's next sequence number: beyond the journal's, and beyond what the run's files have seen.

    The files count, so that a journal that was lost never reuses a number which the trainer has answered.
    """
    journaled = unit.session.scalar(select(func.max(CommandRecord.seq)).where(CommandRecord.run == run))
    return 1 + max(journaled or 0, runs.highest_seq(unit.control_dir, run))


def renumber(unit: Unit, command: CommandRecord) -> None:
    """Give `command` a new number and have it written again: the trainer answered its number to another."""
    command.seq = next_seq(unit, command.run)
    command.written_at = None
    unit.enter(command, "pending")


def mark_written(unit: Unit, command: CommandRecord, *, epoch: int, at: float) -> None:
    """Note that ``commands.json`` holds `command` since `at` (Unix seconds)."""
    command.epoch = epoch
    command.written_at = at
    unit.enter(command, "written")


def finish(
    unit: Unit,
    command: CommandRecord,
    state: CommandState,
    *,
    at: float,
    step: int | None = None,
    detail: str = "",
) -> None:
    """End `command` in `state`; a pause that was only waiting for its alert's end is ended here too."""
    command.finished_at = at
    command.step = step
    command.detail = detail
    unit.enter(command, state)
    followup.after_answer(unit, command)
    if command.resume_when_resolved and state == "applied":
        episode = unit.session.get(EpisodeRecord, command.episode_id)
        if episode is not None:
            resume_if_due(unit, episode)


def resume_if_due(unit: Unit, episode: EpisodeRecord) -> CommandRecord | None:
    """Issue a resume if `episode` has resolved and its own pause is the newest command of the run."""
    if episode.resolved_at is None:
        return None
    unit.session.flush()
    newest = unit.session.scalar(
        select(CommandRecord)
        .where(CommandRecord.run == episode.run, CommandRecord.seq.is_not(None))
        .order_by(CommandRecord.seq.desc())
        .limit(1)
    )
    if newest is None or newest.episode_id != episode.id:
        return None
    if not newest.resume_when_resolved or newest.state != "applied":
        return None
    return issue(
        unit,
        run=episode.run,
        action="resume",
        params={},
        reason=f"{episode.alertname} resolved, and the policy ends its pause then.",
        cause="resume",
        episode=episode,
    )
