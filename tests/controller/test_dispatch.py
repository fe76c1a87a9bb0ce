"""A leader that is silent for long loses its place: it speaks up however many runs and alerts there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainswitch_controller import intake, runs
from trainswitch_controller.dispatch import Dispatcher
from trainswitch_controller.service import Controller


class Impatient:
    """Leadership that is lost where it is asked for too rarely."""

    def __init__(self) -> None:
        self.silent = 0

    def hold(self) -> bool:
        """Return whether the leader has spoken up in time."""
        kept, self.silent = self.silent <= 3, 0
        return kept

    def release(self) -> None:
        """Do nothing."""

    def counting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Return `work`, which takes long."""

        def slow(*args: Any, **named: Any) -> Any:
            self.silent += 1
            return work(*args, **named)

        return slow


@pytest.fixture
def leadership() -> Impatient:
    """A leadership of its own for each test."""
    return Impatient()


@pytest.fixture
def dispatcher(make_controller: Callable[..., Controller], leadership: Impatient) -> Dispatcher:
    """One that has not begun a term yet, on a journal that has seen epoch 1."""
    return Dispatcher(make_controller()._ledger, "0" * 64, 1.0, leadership)


def test_a_term_begins_however_many_runs_there_are(
    home: Any, dispatcher: Dispatcher, leadership: Impatient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of each run are read before the epoch is taken; the leader speaks up between them."""
    for number in range(20):
        (home.control / f"run{number}").mkdir()
    monkeypatch.setattr(runs, "load_status", leadership.counting(runs.load_status))
    dispatcher.tick()
    assert dispatcher.epoch == 2


def test_no_file_is_read_while_the_journal_waits(
    home: Any, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that answers slowly holds no transaction open, in which all controllers' deliveries wait."""
    (home.control / "demo").mkdir(exist_ok=True)
    journal, read = dispatcher._ledger.journal, []

    def load(*_: Any) -> None:
        assert not journal._busy
        read.append(True)

    monkeypatch.setattr(runs, "load_status", load)
    dispatcher.tick()
    assert read


def test_many_alerts_are_decided_again_without_losing_the_lead(
    dispatcher: Dispatcher, leadership: Impatient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long cooldown of many runs, each of the short transactions begins with a question who leads."""
    dispatcher.tick()
    left = iter(range(20))

    def reconsider(_unit: Any, beyond: int) -> tuple[list[Any], int | None]:
        return [], next(left, None)

    monkeypatch.setattr(intake, "reconsider", leadership.counting(reconsider))
    dispatcher._reconsider()
    assert leadership.hold()
