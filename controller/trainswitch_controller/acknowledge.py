"""Matches the answers in ``status.json`` with the commands that wait for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from trainswitch.intervention.commands import CommandOutcome
from trainswitch.intervention.control_file import StatusFile
from trainswitch_controller.records import CommandRecord


@dataclasses.dataclass(frozen=True)
class Answers:
    """What a status file says about the open commands of its run; commands are named by their ids."""

    outcomes: dict[str, CommandOutcome]
    displaced: dict[str, str]
    """Commands whose number the trainer answered to somebody else, each with the sentence that says so."""


def match(commands: Sequence[CommandRecord], status: StatusFile) -> Answers:
    """Return what `status` answers to `commands`, the run's open ones.

    A command that was written, is covered by ``applied_seq``, and has no result any more counts as
    applied: the trainer keeps its last 200 results, so the result was there and was not read in time. A
    command that was never written cannot have been carried out, whatever ``applied_seq`` says.
    """
    by_id = {outcome.id: outcome for outcome in status.results}
    by_seq = {outcome.seq: outcome for outcome in status.results}
    outcomes: dict[str, CommandOutcome] = {}
    displaced: dict[str, str] = {}
    for command in commands:
        if command.seq is None:
            continue
        if command.id in by_id:
            outcomes[command.id] = by_id[command.id]
        elif command.seq in by_seq:
            displaced[command.id] = (
                f"status.json answers number {command.seq} to command {by_seq[command.seq].id[:80]!r}, "
                f"which is not {command.id!r}"
            )
        elif status.applied_seq >= command.seq and command.state == "written":
            outcomes[command.id] = CommandOutcome(
                id=command.id,
                seq=command.seq,
                action=command.action,
                result="applied",
                step=status.step,
                at=status.updated_at,
                detail=f"applied_seq {status.applied_seq} covers it; its result had left status.json.",
            )
        elif status.applied_seq >= command.seq:
            displaced[command.id] = (
                f"status.json has applied_seq {status.applied_seq}, but {command.seq} was never written"
            )
    return Answers(outcomes, displaced)
