"""What follows an intervention: when lasting trouble is looked at again, and what came of it in the end."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from trainswitch_controller.decide import escalation_due
from trainswitch_controller.history import carried_out_at, gather_all, lasting, rungs_taken
from trainswitch_controller.records import CommandRecord, EpisodeRecord, RecoveryRecord, RecoveryResult
from trainswitch_controller.unit import Unit


def after_answer(unit: Unit, command: CommandRecord) -> None:
    """Note what the trainer's answer to `command` means for the alerts that still fire."""
    if command.cause == "ladder" and command.alertname is not None:
        still = lasting(unit, command.run, command.alertname)
        _look_again(unit, still)
        if command.state == "applied" and not _covered(unit, command, still):
            _came_of(unit, command, "resolved")
    elif command.action == "resume" and command.state == "applied":
        _look_again(unit, lasting(unit, command.run))


def after_firing(unit: Unit, episode: EpisodeRecord) -> None:
    """Note that `episode` is new: if it is of a trouble that was answered, that has returned."""
    command = _newest_applied(unit, episode)
    if command is None:
        return
    at = carried_out_at(unit, command)
    if at is not None and at < episode.starts_at < at + unit.policy.ladder_reset:
        _came_of(unit, command, "returned", until=episode.starts_at)


def after_lasting(unit: Unit, episode: EpisodeRecord) -> None:
    """Note that the trouble of `episode` outlasted an intervention; call it before the next one is issued."""
    command = _newest_applied(unit, episode)
    if command is not None:
        _came_of(unit, command, "escalated")


def after_resolution(unit: Unit, episode: EpisodeRecord) -> None:
    """Note that `episode` has resolved; its trouble has when every alert has that fired for it."""
    command = _newest_applied(unit, episode)
    if command is None or not _covered(unit, command, [episode]):
        return
    others = [one for one in lasting(unit, episode.run, episode.alertname) if one.id != episode.id]
    if not _covered(unit, command, others):
        _came_of(unit, command, "resolved")


def _look_again(unit: Unit, episodes: Sequence[EpisodeRecord]) -> None:
    """Have `episodes` decided again when their next rung is due; those that were only held back, at once."""
    troubles: dict[str, list[EpisodeRecord]] = {}
    for episode in episodes:
        if episode.retry_at is None and episode.alertname in unit.policy.alerts:
            troubles.setdefault(episode.alertname, []).append(episode)
    for alertname, waiting in troubles.items():
        rule = unit.policy.alerts[alertname]
        for episode, history in zip(waiting, gather_all(unit, waiting), strict=True):
            if history.last_taken is not None and history.last_taken.covers(episode.starts_at):
                episode.retry_at = escalation_due(unit.policy, rule, history)
            elif not episode.settled:
                episode.retry_at = unit.now


def _covered(unit: Unit, command: CommandRecord, episodes: Sequence[EpisodeRecord]) -> bool:
    """Return whether `command` was the answer to one of `episodes`."""
    at = carried_out_at(unit, command)
    return at is not None and any(episode.starts_at <= at for episode in episodes)


def _newest_applied(unit: Unit, episode: EpisodeRecord) -> CommandRecord | None:
    rungs = rungs_taken(unit, episode.run, episode.alertname)
    return rungs[0] if rungs and rungs[0].state == "applied" else None


def _came_of(
    unit: Unit, command: CommandRecord, result: RecoveryResult, *, until: float | None = None
) -> None:
    """Note `result`, once, with what it took from the intervention until now or `until` (Unix seconds)."""
    unit.session.flush()
    known = select(RecoveryRecord.id).where(
        RecoveryRecord.command_id == command.id, RecoveryRecord.result == result
    )
    at = carried_out_at(unit, command)
    if at is None or command.alertname is None or unit.session.scalar(known) is not None:
        return
    status = unit.status(command.run)
    steps = status.step - command.step if status is not None and command.step is not None else None
    unit.note(
        RecoveryRecord(
            command_id=command.id,
            alertname=command.alertname,
            action=command.action,
            at=unit.now,
            result=result,
            seconds=max(0.0, (unit.now if until is None else until) - at),
            steps=steps if steps is not None and steps >= 0 else None,
        )
    )
