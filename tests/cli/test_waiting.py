"""Waiting for an answer survives a controller that is away for a while."""

from __future__ import annotations

from typing import Any

import pytest

from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.errors import ControllerUnreachable, WaitTimeout
from trainswitch_controller.cli.waiting import wait_for_answer

COMMAND: dict[str, Any] = {"id": "c1", "run": "gpt2", "action": "pause", "state": "written"}


class Answers(ControllerClient):
    """A controller that gives prepared answers, and then always the last."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)

    def command(self, identifier: str) -> dict[str, Any]:
        """Return or raise the next answer."""
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {**COMMAND, "id": identifier, "state": answer}


def test_a_controller_that_is_restarted_is_asked_again() -> None:
    """Its journal has the command, so the wait goes on until the answer is there."""
    client = Answers("written", ControllerUnreachable("away"), "applied")
    assert wait_for_answer(client, COMMAND, 30.0)["state"] == "applied"


def test_a_controller_that_stays_away_is_waited_for_until_the_deadline() -> None:
    """The error names the command and what it was waiting for when last seen."""
    with pytest.raises(WaitTimeout, match=r"pause of run gpt2 \(command c1\) is still written"):
        wait_for_answer(Answers(ControllerUnreachable("away")), COMMAND, 0.3)


def test_an_interrupted_wait_says_that_the_command_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the waiting, not the command."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainswitch_controller.cli.waiting.time.sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        wait_for_answer(Answers("written"), COMMAND, 30.0)
    assert "stays in force until it expires" in capsys.readouterr().err


def test_an_answered_command_is_not_waited_for() -> None:
    """Nothing is asked when the answer is there already."""
    answered = {**COMMAND, "state": "refused"}
    assert wait_for_answer(Answers(AssertionError("asked")), answered, 0.0) == answered
