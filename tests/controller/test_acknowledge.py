"""Matching a status file's answers with the commands that wait."""

from __future__ import annotations

from typing import Any

from trainswitch.intervention.commands import CommandOutcome
from trainswitch.intervention.control_file import StatusFile
from trainswitch_controller.acknowledge import match
from trainswitch_controller.records import CommandRecord, CommandState


def command(name: str, seq: int | None, state: CommandState = "written") -> CommandRecord:
    """Return a command as the journal holds it."""
    return CommandRecord(id=name, run="demo", seq=seq, action="pause", state=state)


def status(*results: tuple[str, int], applied_seq: int) -> StatusFile:
    """Return a status file with these results, given as id and seq."""
    outcomes: list[dict[str, Any]] = [
        {"id": name, "seq": seq, "action": "pause", "result": "refused", "step": 7, "at": 5.0}
        for name, seq in results
    ]
    return StatusFile(
        run="demo",
        session="s",
        state="running",
        step=9,
        applied_seq=applied_seq,
        results=tuple(CommandOutcome(**outcome) for outcome in outcomes),
        updated_at=6.0,
        pid=1,
        node="here",
    )


def test_a_result_answers_the_command_of_its_id() -> None:
    """A listed result is the answer, also to a command whose writing the journal had not noted yet."""
    answers = match([command("a", 1), command("b", 2, "pending")], status(("a", 1), ("b", 2), applied_seq=2))
    assert {name: outcome.result for name, outcome in answers.outcomes.items()} == {
        "a": "refused",
        "b": "refused",
    }
    assert answers.displaced == {}


def test_an_unanswered_command_stays() -> None:
    """A number beyond applied_seq, and a command that has none yet, wait on."""
    answers = match([command("a", 3), command("b", None, "awaiting_approval")], status(applied_seq=2))
    assert (answers.outcomes, answers.displaced) == ({}, {})


def test_a_covered_command_without_result_was_applied() -> None:
    """applied_seq is the trainer's word for the number; the detail says that the result is gone."""
    outcome = match([command("a", 3)], status(applied_seq=5)).outcomes["a"]
    assert (outcome.result, outcome.step, outcome.at) == ("applied", 9, 6.0)
    assert "applied_seq 5 covers it" in outcome.detail


def test_a_foreign_answer_displaces() -> None:
    """A result for our number under another id, or a covered number that was never written, is not ours."""
    answers = match([command("a", 3), command("b", 4, "pending")], status(("x", 3), applied_seq=4))
    assert answers.outcomes == {}
    assert set(answers.displaced) == {"a", "b"}
    assert "'x'" in answers.displaced["a"]
