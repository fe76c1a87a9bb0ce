"""Clocks are set: what was put off until a time that now lies far away is not put off so long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainswitch_controller.service import Order

MakeLoop = Callable[..., Any]

POLICY = """
version: 1
cooldown: 60s
escalate_after: 10m
max_alert_age: 24h
alerts:
  TrainNonFinite:
    ladder: [{action: snapshot}]
  TrainLossUnstable:
    ladder:
      - {action: reduce_lr, params: {factor: 0.5}}
      - {action: reduce_lr, params: {factor: 0.25}}
"""


def test_an_intervention_of_the_future_holds_nothing_back(home: Any, make_loop: MakeLoop) -> None:
    """An hour ahead when it acted, and right again: other trouble does not wait for that hour."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    loop.clock.time += 3600.0
    loop.fire("TrainNonFinite")
    loop.tick()
    trainer.poll()
    assert loop.fire("TrainLossUnstable") == "cooldown"
    loop.clock.time -= 3600.0
    loop.tick(1.0)
    assert [action for action, _ in loop.states()] == ["reduce_lr", "snapshot"]


def test_a_clock_that_is_a_little_off_changes_no_cooldown(home: Any, make_loop: MakeLoop) -> None:
    """The times of another controller, or of a clock that was corrected by seconds, are believed."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainNonFinite")
    loop.tick()
    trainer.poll()
    loop.clock.time -= 5.0
    assert loop.fire("TrainLossUnstable") == "cooldown"
    loop.tick(60.0)
    assert len(loop.commands()) == 1
    loop.tick(5.0)
    assert len(loop.commands()) == 2


def answered_an_hour_ahead(trainer: Any) -> None:
    """Have the trainer's newest answer say that it was given in an hour."""
    newest = trainer.results[-1]
    trainer.results[-1] = newest.model_copy(update={"at": newest.at + 3600.0})
    trainer.write()


def test_a_trainer_that_is_an_hour_ahead_does_not_hide_what_returns(home: Any, make_loop: MakeLoop) -> None:
    """Trouble that begins after the command is news, although the answer seems to be from later."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainLossUnstable")
    loop.tick()
    trainer.poll()
    answered_an_hour_ahead(trainer)
    loop.tick(100.0)
    assert loop.fire("TrainLossUnstable") == "acted"


def test_trouble_that_lasts_climbs_although_prometheus_is_ahead(home: Any, make_loop: MakeLoop) -> None:
    """An alert that seems to have begun after it was answered has been answered all the same."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainLossUnstable", starts_at=loop.clock.time + 90.0)
    loop.tick()
    trainer.poll()
    loop.tick(1.0)
    loop.tick(600.0)
    assert len(loop.commands()) == 1  # its time is counted from its own beginning
    loop.tick(90.0)
    assert [action for action, _ in loop.states()] == ["reduce_lr", "reduce_lr"]


def test_a_resumption_an_hour_ahead_is_waited_for_once(home: Any, make_loop: MakeLoop) -> None:
    """What fired before a resume gets one cooldown from it, decided once and not at every look."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    loop.controller.order("demo", Order(action="resume"))
    loop.tick()
    trainer.poll()
    answered_an_hour_ahead(trainer)
    loop.tick(1.0)
    assert loop.fire("TrainLossUnstable", starts_at=began - 1.0) == "cooldown"
    for _ in range(20):
        loop.tick(1.0)
    assert loop.decided("TrainLossUnstable") == ["cooldown"]
    loop.tick(40.0)
    assert loop.decided("TrainLossUnstable") == ["cooldown", "acted"]
