"""The beginning of a controller's term as the one that writes: its epoch, and what the command files hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from trainswitch.intervention.commands import Command
from trainswitch_controller import orders
from trainswitch_controller.errors import LeadershipLost
from trainswitch_controller.held import Held
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.records import SCHEMA_VERSION, CommandRecord, StartRecord
from trainswitch_controller.unit import Unit

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_NEWEST = select(func.max(StartRecord.epoch))


def take_epoch(ledger: Ledger, policy_sha256: str, above: int) -> int:
    """Begin a term: note its start, and return its epoch, higher than any that the journal has seen.

    Args:
        ledger: where the start is noted.
        policy_sha256: what is judged by in this term.
        above: the highest epoch that the files have seen. They are read before: there may be thousands, and
            no other controller can write meanwhile.

    Raises:
        JournalError: it could not be committed.
    """

    def begin(session: Session) -> int:
        newest = session.scalars(select(StartRecord).order_by(StartRecord.epoch.desc()).limit(1)).first()
        journaled = newest.epoch if newest is not None else 0
        epoch = 1 + max(journaled, above)
        session.add(
            StartRecord(
                epoch=epoch, at=ledger.now(), schema_version=SCHEMA_VERSION, policy_sha256=policy_sha256
            )
        )
        return epoch

    return ledger.journal.write(begin)


def change_in_term(ledger: Ledger, epoch: int, work: Callable[[Unit], Result]) -> Result:
    """Do what `Ledger.change` does, unless a later term has begun.

    Raises:
        LeadershipLost: another controller has begun its term; nothing is stored.
        JournalError: the transaction could not be committed; nothing of it is stored.
    """

    def fenced(unit: Unit) -> Result:
        newest = unit.session.scalar(_NEWEST)
        if newest != epoch:
            raise LeadershipLost(
                f"another controller has begun epoch {newest} on this journal, and this one had {epoch}: it "
                "follows from now on."
            )
        return work(unit)

    return ledger.change(fenced)


def adopt(ledger: Ledger, run: str, commands: Sequence[Command], held: Held) -> None:
    """Take commands into the journal that only the file knows: a lost journal breaks no promise.

    Raises:
        JournalError: they could not be committed.
    """

    def take_in(unit: Unit) -> list[str]:
        known = select(CommandRecord.id, CommandRecord.seq).where(CommandRecord.run == run)
        rows = unit.session.execute(known).all()
        ids, numbers = {row.id for row in rows}, {row.seq for row in rows}
        foreign = []
        for command in commands:
            if command.id in ids:
                continue
            if command.seq in numbers:
                foreign.append(command.id)
            else:
                orders.adopt(unit, run, command, epoch=held.epoch, at=held.at)
        return foreign

    for command_id in ledger.change(take_in):
        ledger.metrics.file_error("commands", "foreign")
        log.error("run %s: commands.json holds command %r under a number of another", run, command_id)
