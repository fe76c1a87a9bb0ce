"""Whatever is resent, reordered, killed or set back: one episode causes at most one intervention per rung."""

from __future__ import annotations

import collections
import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from trainswitch_controller.errors import JournalError, RequestError
from trainswitch_controller.records import CommandRecord, EpisodeRecord
from trainswitch_controller.service import Controller, Order, Rejection

POLICY = """
version: 1
mode: {mode}
cooldown: 60s
escalate_after: 5m
relapse_within: 3m
command_ttl: 4m
budget: {{per_run: {{interventions: 4, window: 1h}}}}
alerts:
  TrainNonFinite:
    ladder: [{{action: pause, resume_when_resolved: true}}, {{action: rollback}}]
  TrainLossUnstable:
    ladder: [{{action: reduce_lr}}, {{action: rollback}}, {{action: rollback}}, {{action: rollback}}]
"""
ESCALATE_AFTER = 300.0
NAMES = ("TrainNonFinite", "TrainLossUnstable")

deliveries = st.tuples(
    st.just("deliver"),
    st.sampled_from(NAMES),
    st.integers(0, 3),  # which episode
    st.sampled_from(["", "1"]),  # of which rank
    st.sampled_from(["firing", "firing", "resolved"]),
)
operations = st.one_of(
    deliveries,
    st.tuples(st.just("resend"), st.integers(0, 30)),
    st.tuples(st.just("pass"), st.sampled_from([0.0, 1.0, 59.0, 61.0, 150.0, 301.0, 2000.0])),
    st.tuples(st.just("step clock"), st.sampled_from([-300.0, -2.0])),
    st.tuples(st.just("tick")),
    st.tuples(st.just("train"), st.sampled_from(["applied", "applied", "refused", "failed"])),
    st.tuples(st.just("kill")),
    st.tuples(st.just("kill in commit"), st.integers(0, 30)),
    st.tuples(st.just("order"), st.sampled_from(["pause", "resume"])),
    st.tuples(st.just("consent"), st.booleans()),
)


class World:
    """A controller that is driven, killed and started again over one journal and one trainer."""

    def __init__(self, folder: Path, tools: Any, mode: str) -> None:
        self.tools = tools
        self.home = tools.home(folder)
        self.home.write_policy(POLICY.format(mode=mode))
        self.clock = tools.clock()
        self.trainer = self.home.trainer()
        self.began: dict[tuple[str, int], float] = {}
        self.delivered: list[tuple[str, dict[str, Any]]] = []
        self.clock_stepped = False
        self.loop = self.start()

    def start(self) -> Any:
        """Start a controller."""
        controller = Controller(self.home.settings(), now=self.clock)
        controller._dispatcher.look()
        return self.tools.loop(controller, self.tools, self.clock)

    def kill(self) -> None:
        """Lose everything that is not on the disk, and start again."""
        self.loop.controller.journal.close()
        self.loop = self.start()

    def do(self, name: str, *values: Any) -> None:
        """Carry out one operation."""
        getattr(self, f"_{name.replace(' ', '_')}")(*values)

    def _deliver(self, alert: str, number: int, rank: str, status: str) -> None:
        began = self.began.setdefault((alert, number), self.clock.time)
        labels = {"rank": rank} if rank else {}
        self._send(alert, {"starts_at": began, "status": status, **labels})

    def _send(self, alert: str, of: dict[str, Any]) -> None:
        self.delivered.append((alert, of))
        self.loop.fire(alert, **of)

    def _resend(self, number: int) -> None:
        if self.delivered:
            alert, of = self.delivered[number % len(self.delivered)]
            self.loop.fire(alert, **of)

    def _kill_in_commit(self, number: int) -> None:
        """Die between the last statement and the commit; whoever was not answered delivers again."""
        if not self.delivered:
            return
        alert, of = self.delivered[number % len(self.delivered)]
        with _no_commit(), pytest.raises(JournalError):
            self.loop.fire(alert, **of)
        self.kill()
        self.loop.fire(alert, **of)

    def _kill(self) -> None:
        self.kill()

    def _pass(self, seconds: float) -> None:
        self.loop.tick(seconds)

    def _step_clock(self, seconds: float) -> None:
        self.clock.time += seconds
        self.clock_stepped = True

    def _tick(self) -> None:
        self.loop.tick()

    def _train(self, answer: str) -> None:
        """Carry out what is in the file; a trainer that has paused says so."""
        self.trainer.answers = answer
        known = len(self.trainer.results)
        self.trainer.poll()
        state = "running"
        for result in self.trainer.results[known:]:
            if result.result == "applied":
                state = {"pause": "paused"}.get(result.action, "running")
        self.trainer.write(state=state)

    def _order(self, action: str) -> None:
        with contextlib.suppress(RequestError):
            self.loop.controller.order("demo", Order(action=action))

    def _consent(self, given: bool) -> None:
        waiting = [one["id"] for one in self.loop.commands() if one["state"] == "awaiting_approval"]
        with contextlib.suppress(RequestError):
            if waiting and given:
                self.loop.controller.approve(waiting[0])
            elif waiting:
                self.loop.controller.reject(waiting[0], Rejection())

    def check(self) -> None:
        """Assert what must hold at every moment."""
        commands = self.loop.controller.journal.read(_taken)
        for episode, found in commands.items():
            rungs = [command.rung for command in found]
            assert rungs == sorted(set(rungs)), f"episode {episode} took rungs {rungs}"
            for before, after in itertools.pairwise(found):
                if before.state == "applied" and not self.clock_stepped:
                    assert before.finished_at is not None
                    assert after.created_at >= before.finished_at + ESCALATE_AFTER
        assert len(self.trainer.carried_out) == len(set(self.trainer.carried_out))
        done = set(self.trainer.carried_out)
        for found in commands.values():
            assert (
                max(collections.Counter(one.rung for one in found if one.id in done).values(), default=0) < 2
            )


def _taken(session: Session) -> dict[int, list[CommandRecord]]:
    """Return each episode's interventions, oldest first."""
    query = (
        sqlalchemy.select(CommandRecord)
        .join(EpisodeRecord, EpisodeRecord.id == CommandRecord.episode_id)
        .where(CommandRecord.cause.in_(("ladder", "budget")))
        .order_by(sqlalchemy.text("commands.rowid"))
    )
    found: dict[int, list[CommandRecord]] = collections.defaultdict(list)
    for command in session.scalars(query):
        assert command.episode_id is not None
        found[command.episode_id].append(command)
    return found


@contextlib.contextmanager
def _no_commit() -> Iterator[None]:
    def refuse(_session: Session) -> None:
        raise sqlalchemy.exc.OperationalError("commit", None, OSError("killed"))

    sqlalchemy.event.listen(Session, "before_commit", refuse)
    try:
        yield
    finally:
        sqlalchemy.event.remove(Session, "before_commit", refuse)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mode=st.sampled_from(["enforce", "enforce", "approve"]), steps=st.lists(operations, max_size=30))
def test_one_episode_takes_each_rung_once(tools: Any, mode: str, steps: list[tuple[Any, ...]]) -> None:
    """Over any sequence of deliveries, kills, clock steps and answers, no rung is taken twice."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), tools, mode)
        try:
            for step in steps:
                world.do(*step)
                world.check()
        finally:
            world.loop.controller.journal.close()


def test_the_worst_day(tools: Any, tmp_path: Path) -> None:
    """One long sequence with everything in it climbs the whole ladder, so the property is not empty."""
    world = World(tmp_path, tools, "enforce")
    unstable = ("deliver", "TrainLossUnstable", 0, "", "firing")
    world.do(*unstable)
    for _ in range(5):
        for step in (
            ("tick",),
            ("kill in commit", 0),
            ("train", "applied"),
            ("tick",),
            ("resend", 0),
            ("pass", 301.0),
            ("kill",),
            ("pass", 1.0),
        ):
            world.do(*step)
            world.check()
    actions = [command["action"] for command in world.loop.commands()]
    world.loop.controller.journal.close()
    assert actions == ["reduce_lr", "rollback", "rollback", "pause"]
    assert len(world.trainer.carried_out) == 4
