"""A command at the end of a session: an answer that was lost with it, and what has nobody left to do it."""

from __future__ import annotations

from pathlib import Path

from tests.exporter.conftest import MonitorFactory
from tests.exporter.test_monitor import Loop, settle

SETTINGS = {"checkpoint": {"interval_steps": 10, "probation_steps": 5}}


def test_a_restored_effect_is_not_added_a_second_time(home: Path, new_monitor: MonitorFactory) -> None:
    """Killed after a save and before its answer was on the disk, a command is answered and not repeated."""
    first = Loop(home, new_monitor, **SETTINGS)
    first.train(1)
    status = home / "control" / "run-1" / "status.json"
    before = status.read_bytes()
    first.command("reduce_lr", params={"factor": 0.5})
    first.train(1)
    given = first.status().results[-1]
    settle(first)
    first.monitor.close()
    status.write_bytes(before)  # as a full disk leaves it

    second = Loop(home, new_monitor, **SETTINGS)
    assert second.monitor.restore() == 10
    second.train(1)
    assert second.status().results[-1] == given
    assert second.monitor._interventions._rates.factor == 0.5


def test_an_effect_from_before_the_checkpoint_is_made_again(home: Path, new_monitor: MonitorFactory) -> None:
    """Restored to a step from before an unanswered command, the run does not have its effect: it is due."""
    first = Loop(home, new_monitor, **SETTINGS)
    settle(first)
    status = home / "control" / "run-1" / "status.json"
    before = status.read_bytes()
    first.command("reduce_lr", params={"factor": 0.5})
    first.train(1)
    first.monitor.close()
    status.write_bytes(before)

    second = Loop(home, new_monitor, **SETTINGS)
    restored = second.monitor.restore()
    second.train(1)
    answer = second.status().results[-1]
    assert (answer.result, answer.step) == ("applied", (restored or 0) + 1)
    assert second.monitor._interventions._rates.factor == 0.5


def test_a_run_that_ends_begins_nothing_more(home: Path, new_monitor: MonitorFactory) -> None:
    """A command that comes after the last step is not answered: it would be answered without an effect."""
    loop = Loop(home, new_monitor, **SETTINGS)
    loop.train(1)
    loop.command("reduce_lr", params={"factor": 0.5})
    loop.monitor.close()
    assert loop.status().applied_seq == 0
    assert loop.status().results == ()
