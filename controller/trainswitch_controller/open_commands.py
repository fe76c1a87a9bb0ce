"""What becomes, in the journal, of commands that are open: written, answered, or out of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from trainswitch_controller import orders
from trainswitch_controller.acknowledge import Answers
from trainswitch_controller.held import Held
from trainswitch_controller.records import OPEN_STATES, AnswerRecord, CommandRecord
from trainswitch_controller.unit import Unit
from trainswitch_controller.validation import storable


def of_all_runs(session: Session) -> Sequence[CommandRecord]:
    """Return every open command, by run and number."""
    return session.scalars(
        select(CommandRecord)
        .where(CommandRecord.state.in_(OPEN_STATES))
        .order_by(CommandRecord.run, CommandRecord.seq)
    ).all()


def of_run(session: Session, run: str) -> Sequence[CommandRecord]:
    """Return the open commands of `run`, by number."""
    return session.scalars(
        select(CommandRecord)
        .where(CommandRecord.run == run, CommandRecord.state.in_(OPEN_STATES))
        .order_by(CommandRecord.seq)
    ).all()


def mark_written(unit: Unit, run: str, held: Held) -> None:
    """Note which commands the run's file holds."""
    for command in of_run(unit.session, run):
        if command.state == "pending" and held.holds(command):
            orders.mark_written(unit, command, epoch=held.epoch, at=held.at)


def store_answers(unit: Unit, run: str, answers: Answers, session_name: str) -> None:
    """Take in what the trainer answered in its session; displaced commands get new numbers."""
    for command in of_run(unit.session, run):
        outcome = answers.outcomes.get(command.id)
        if outcome is not None:
            detail = storable(outcome.detail)
            orders.finish(unit, command, outcome.result, at=outcome.at, step=outcome.step, detail=detail)
            unit.session.add(
                AnswerRecord(
                    command_id=command.id,
                    read_at=unit.now,
                    session=storable(session_name),
                    result=outcome.result,
                    step=outcome.step,
                    at=outcome.at,
                    detail=detail,
                )
            )
        elif command.id in answers.displaced:
            orders.renumber(unit, command)


def too_late(
    commands: Sequence[CommandRecord], held: Held | None, now: float, obstacle: str
) -> dict[str, str]:
    """Return why nobody can or will carry out some of `commands` any more, by their ids.

    Args:
        commands: open ones of one run.
        held: what the run's file holds, where that is known.
        now: Unix seconds.
        obstacle: what kept commands from being written.
    """
    late: dict[str, str] = {}
    for command in commands:
        if command.state == "pending" and command.expires_at <= now and not (held and held.holds(command)):
            late[command.id] = f"it could not be written before it expired: {obstacle}"
        elif command.state == "written" and _grace_end(command) <= now:
            late[command.id] = "the trainer has not answered, neither in time nor as long again."
    return late


def expire(unit: Unit, run: str, late: Mapping[str, str], at: float) -> None:
    """End what is in `late`, with the reason that it gives, at `at` (Unix seconds)."""
    for command in of_run(unit.session, run):
        if command.id in late:
            orders.finish(unit, command, "expired", at=at, detail=late[command.id])


def _grace_end(command: CommandRecord) -> float:
    assert command.issued_at is not None
    return command.expires_at + (command.expires_at - command.issued_at)
