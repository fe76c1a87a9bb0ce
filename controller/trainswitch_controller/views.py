"""The journal's records and the control folder's files as the API's JSON objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from trainswitch.errors import ControlFileError
from trainswitch_controller import runs
from trainswitch_controller.control_folder import ControlFolder
from trainswitch_controller.errors import NotFound
from trainswitch_controller.onset.views import of_episodes
from trainswitch_controller.outcome.records import OutcomeRecord
from trainswitch_controller.records import (
    UNFINISHED_STATES,
    CommandRecord,
    DecisionRecord,
    EpisodeRecord,
    RecoveryRecord,
)

Json = dict[str, Any]

UNAPPROVED_SHOWN_S = 86400.0
"""How long a run's status tells of commands that nobody approved."""


def command_view(
    command: CommandRecord,
    recoveries: Sequence[RecoveryRecord] = (),
    outcome: OutcomeRecord | None = None,
) -> Json:
    """Return one command, and what came of it; times in Unix seconds, `seq` null until it is approved."""
    return {
        "id": command.id,
        "run": command.run,
        "seq": command.seq,
        "epoch": command.epoch,
        "action": command.action,
        "params": command.params,
        "reason": command.reason,
        "source": "operator" if command.cause == "operator" else "alert",
        "alertname": command.alertname,
        "episode_id": command.episode_id,
        "state": command.state,
        "created_at": command.created_at,
        "expires_at": command.expires_at,
        "written_at": command.written_at,
        "finished_at": command.finished_at,
        "step": command.step,
        "detail": command.detail,
        "recovery": [
            {"at": one.at, "result": one.result, "seconds": one.seconds, "steps": one.steps}
            for one in recoveries
        ],
        "outcome": outcome
        and {"at": outcome.at, "gpu_seconds": outcome.gpu_seconds, "loss_ratio": outcome.loss_ratio},
    }


def one_command(session: Session, command_id: str) -> Json:
    """Return the command `command_id`.

    Raises:
        NotFound: there is none.
    """
    command = session.get(CommandRecord, command_id)
    if command is None:
        raise NotFound(f"there is no command {command_id[:80]!r}.")
    return _with_recoveries(session, [command])[0]


def commands(session: Session, run: str | None, limit: int) -> list[Json]:
    """Return the newest commands, of one run or of all."""
    query = (
        select(CommandRecord).order_by(CommandRecord.created_at.desc(), CommandRecord.seq.desc()).limit(limit)
    )
    if run is not None:
        query = query.where(CommandRecord.run == run)
    return _with_recoveries(session, session.scalars(query).all())


def unfinished_commands(session: Session, run: str) -> list[Json]:
    """Return the commands of `run` that the trainer has not answered, oldest first."""
    query = (
        select(CommandRecord)
        .where(CommandRecord.run == run, CommandRecord.state.in_(UNFINISHED_STATES))
        .order_by(CommandRecord.created_at, CommandRecord.seq)
    )
    return [command_view(command) for command in session.scalars(query)]


def awaiting_approval(session: Session) -> dict[str, int]:
    """Return run → how many of its commands await an operator's approval; runs without any are left out."""
    query = (
        select(CommandRecord.run, func.count().label("waiting"))
        .where(CommandRecord.state == "awaiting_approval")
        .group_by(CommandRecord.run)
    )
    return {row.run: row.waiting for row in session.execute(query)}


def unapproved_commands(session: Session, run: str, since: float) -> list[Json]:
    """Return what nobody approved of `run` in time after `since` (Unix seconds), and what was rejected."""
    query = (
        select(CommandRecord)
        .where(
            CommandRecord.run == run,
            CommandRecord.issued_at.is_(None),
            CommandRecord.state.in_(("expired", "rejected")),
            CommandRecord.finished_at > since,
        )
        .order_by(CommandRecord.created_at)
    )
    return [command_view(command) for command in session.scalars(query)]


def _with_recoveries(session: Session, found: Sequence[CommandRecord]) -> list[Json]:
    recoveries: dict[str, list[RecoveryRecord]] = {command.id: [] for command in found}
    query = (
        select(RecoveryRecord).where(RecoveryRecord.command_id.in_(recoveries)).order_by(RecoveryRecord.id)
    )
    for recovery in session.scalars(query):
        recoveries[recovery.command_id].append(recovery)
    measured = select(OutcomeRecord).where(OutcomeRecord.command_id.in_(recoveries))
    outcomes = {one.command_id: one for one in session.scalars(measured)}
    return [command_view(one, recoveries[one.id], outcomes.get(one.id)) for one in found]


def episodes(session: Session, run: str | None, limit: int) -> list[Json]:
    """Return the newest episodes, of one run or of all, with decisions in order and incident or null."""
    query = select(EpisodeRecord).order_by(EpisodeRecord.id.desc()).limit(limit)
    if run is not None:
        query = query.where(EpisodeRecord.run == run)
    found = session.scalars(query).all()
    decisions: dict[int, list[Json]] = {episode.id: [] for episode in found}
    query_decisions = (
        select(DecisionRecord).where(DecisionRecord.episode_id.in_(decisions)).order_by(DecisionRecord.id)
    )
    for decision in session.scalars(query_decisions):
        assert decision.episode_id is not None
        decisions[decision.episode_id].append(_decision_view(decision))
    incidents = of_episodes(session, found)
    return [
        {**_episode_view(episode, decisions[episode.id]), "incident": incidents.get(episode.id)}
        for episode in found
    ]


def all_runs(control_dir: ControlFolder) -> list[Json]:
    """Return every run with what its trainer said last.

    Raises:
        ControlFolderError: the control folder cannot be listed.
    """
    return [_run_view(control_dir, run) for run in runs.list_runs(control_dir)]


def status_of(control_dir: ControlFolder, run: str) -> tuple[Json | None, str | None]:
    """Return ``status.json`` of `run`, or None and, where there is one, the reason why it cannot be used."""
    try:
        status = runs.load_status(control_dir, run)
    except ControlFileError as error:
        return None, str(error)
    return (status.model_dump(mode="json", by_alias=True) if status else None), None


def _run_view(control_dir: ControlFolder, run: str) -> Json:
    status, error = status_of(control_dir, run)
    known = status or {}
    view: Json = {"run": run}
    view.update((key, known.get(key)) for key in ("state", "step", "updated_at", "applied_seq"))
    return {**view, "error": error}


def _decision_view(decision: DecisionRecord) -> Json:
    return {
        "at": decision.at,
        "outcome": decision.outcome,
        "rung": decision.rung,
        "action": decision.action,
        "params": decision.params,
        "reason": decision.reason,
        "command_id": decision.command_id,
    }


def _episode_view(episode: EpisodeRecord, decisions: Sequence[Json]) -> Json:
    return {
        "id": episode.id,
        "fingerprint": episode.fingerprint,
        "starts_at": episode.starts_at,
        "alertname": episode.alertname,
        "run": episode.run,
        "severity": episode.severity,
        "labels": episode.labels,
        "annotations": episode.annotations,
        "state": "firing" if episode.resolved_at is None else "resolved",
        "received_at": episode.received_at,
        "resolved_at": episode.resolved_at,
        "decisions": decisions,
    }
