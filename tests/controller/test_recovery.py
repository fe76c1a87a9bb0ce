"""What came of an intervention is journaled, shown with its command, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MakeLoop = Callable[..., Any]

POLICY = """
version: 1
cooldown: 0s
escalate_after: 10m
alerts:
  TrainLossUnstable:
    ladder: [{action: reduce_lr, params: {factor: 0.5}}, {action: rollback}]
"""


def answered(home: Any, make_loop: MakeLoop, **of: Any) -> tuple[Any, Any, float]:
    """Return trainer, loop and the beginning of an alert whose first rung was applied a second later."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    loop.fire("TrainLossUnstable", starts_at=began, **of)
    loop.tick(1.0)
    trainer.poll()
    loop.tick(1.0)
    return trainer, loop, began


def came_of(loop: Any, number: int = 0) -> list[tuple[str, float, int | None]]:
    """Return what came of one command, oldest first."""
    return [(one["result"], one["seconds"], one["steps"]) for one in loop.commands()[number]["recovery"]]


def test_an_alert_that_resolves_is_a_recovery(home: Any, make_loop: MakeLoop) -> None:
    """Seconds and steps from the intervention to the alert's end, noted once and exported."""
    trainer, loop, began = answered(home, make_loop)
    assert came_of(loop) == []
    trainer.write(step=160)
    loop.clock.time = began + 61.0
    for _ in range(2):
        loop.fire("TrainLossUnstable", starts_at=began, status="resolved")
    assert came_of(loop) == [("resolved", 60.0, 60)]
    assert loop.metric("recovery_seconds_sum", action="reduce_lr") == 60.0
    assert loop.metric("recovery_seconds_count", action="reduce_lr") == 1
    assert loop.metric("recoveries_total", alertname="TrainLossUnstable", result="resolved") == 1


def test_an_alert_of_several_ranks_has_resolved_with_the_last(home: Any, make_loop: MakeLoop) -> None:
    """One rank's alert that ends while another's fires is no recovery yet."""
    trainer = home.trainer()
    home.write_policy(POLICY)
    loop = make_loop()
    began = loop.clock.time
    for rank in "01":
        loop.fire("TrainLossUnstable", starts_at=began, rank=rank)
    loop.tick()
    trainer.poll()
    loop.tick(1.0)
    loop.fire("TrainLossUnstable", starts_at=began, rank="0", status="resolved")
    assert came_of(loop) == []
    loop.fire("TrainLossUnstable", starts_at=began, rank="1", status="resolved")
    assert [result for result, _, _ in came_of(loop)] == ["resolved"]


def test_an_alert_that_ended_before_the_answer_took_no_time(home: Any, make_loop: MakeLoop) -> None:
    """A fault that was over before the trainer acted is resolved the moment it does."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    loop.fire("TrainLossUnstable", starts_at=began)
    loop.tick()
    loop.fire("TrainLossUnstable", starts_at=began, status="resolved")
    trainer.poll()
    loop.tick(1.0)
    assert [(result, seconds) for result, seconds, _ in came_of(loop)] == [("resolved", 0.0)]


def test_trouble_that_returns_is_noted_with_the_intervention(home: Any, make_loop: MakeLoop) -> None:
    """A new episode after a recovery says that it did not last, whatever is decided about it."""
    _, loop, began = answered(home, make_loop)
    loop.clock.time = began + 61.0
    loop.fire("TrainLossUnstable", starts_at=began, status="resolved")
    loop.clock.time = began + 301.0
    loop.fire("TrainLossUnstable")
    assert [(result, seconds) for result, seconds, _ in came_of(loop)] == [
        ("resolved", 60.0),
        ("returned", 300.0),
    ]


def test_trouble_that_lasts_is_noted_as_escalated(home: Any, make_loop: MakeLoop) -> None:
    """The rung that did not end it says so when the next one is taken, and is no recovery afterwards."""
    trainer, loop, began = answered(home, make_loop)
    loop.tick(700.0)
    assert [(result, seconds > 600.0) for result, seconds, _ in came_of(loop)] == [("escalated", True)]
    loop.tick()
    trainer.poll()
    loop.tick(1.0)
    loop.fire("TrainLossUnstable", starts_at=began, status="resolved")
    assert [result for result, _, _ in came_of(loop)] == ["escalated"]
    assert [result for result, _, _ in came_of(loop, 1)] == ["resolved"]


def test_a_refused_intervention_has_no_recovery(home: Any, make_loop: MakeLoop) -> None:
    """What the trainer did not do gets no credit for the alert's end."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    trainer.answers = "refused"
    loop = make_loop()
    began = loop.clock.time
    loop.fire("TrainLossUnstable", starts_at=began)
    loop.tick()
    trainer.poll()
    loop.tick(1.0)
    loop.fire("TrainLossUnstable", starts_at=began, status="resolved")
    assert came_of(loop) == []
