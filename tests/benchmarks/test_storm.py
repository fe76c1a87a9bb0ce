"""The storm benchmark counts what it says; its figures are not tested here."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from benchmarks.storm.audit import audit
from benchmarks.storm.client import Answer
from benchmarks.storm.command import _POLICY, Storm, measure
from benchmarks.storm.deliveries import Delivery, draw, run_names
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from trainswitch_controller.journal import Journal
from trainswitch_controller.policy import load_policy
from trainswitch_controller.records import CommandRecord, DecisionRecord, EpisodeRecord

WEBHOOKS = 200
RUNS = run_names(5)


def test_a_storm_is_what_it_says() -> None:
    """Every delivery has a key of its own, an episode begins as firing, and all three kinds are there."""
    deliveries = draw(1000, 7, 1, 1_700_000_000.0)
    assert len({one.key for one in deliveries}) == len(deliveries) == 1000
    begun: set[str] = set()
    for one in deliveries:
        assert one.episode.fingerprint in begun or not one.resolved
        begun.add(one.episode.fingerprint)
    assert len(begun) == 600
    assert sum(one.resolved for one in deliveries) == 150
    assert {one.episode.run for one in deliveries} == set(run_names(7))
    body = json.loads(deliveries[0].body())
    assert (body["version"], len(body["alerts"])) == ("4", 1)


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Storm, str]:
    """A small storm against a real controller, and its journal."""
    home = tmp_path_factory.mktemp("storm")
    url = f"sqlite:///{home / 'journal.db'}"
    return measure(home, url, WEBHOOKS, 8, RUNS, seed=3), url


def test_nothing_is_lost_or_doubled(storm: tuple[Storm, str]) -> None:
    """Every webhook gets its 200, and what was answered is in the journal and was carried out once."""
    found, _ = storm
    assert found.statuses == {"200": WEBHOOKS}
    assert found.settled
    assert found.audit.agrees, found.audit
    assert sum(answer.outcomes.count("acted") for answer in found.answers) >= len(RUNS)
    assert all(size > 10 for size in found.resident_mib)


def test_a_missed_bar_is_named(storm: tuple[Storm, str]) -> None:
    """Each bar by itself makes the verdict."""
    found, _ = storm
    quick = dataclasses.replace(
        found,
        answers=[dataclasses.replace(one, seconds=0.01) for one in found.answers],
        resident_mib=[50.0] * 10,
    )
    assert quick.misses == []
    slow = [dataclasses.replace(one, seconds=0.3) for one in quick.answers[:3]] + quick.answers[3:]
    refused = [dataclasses.replace(quick.answers[0], status=503), *quick.answers[1:]]
    for changes, words in (
        ({"answers": slow}, "p99 is 300 ms"),
        ({"answers": refused}, "1 deliveries were not answered with 200"),
        ({"resident_mib": [50.0, 50.0, 50.0, 90.0]}, "memory grew by 40.0 MiB"),
        ({"settled": False}, "still open"),
        ({"audit": dataclasses.replace(quick.audit, lost_commands=1)}, "'lost_commands': 1"),
    ):
        [sentence] = dataclasses.replace(quick, **changes).misses
        assert words in sentence


def spoiled(storm: tuple[Storm, str], spoil: Any) -> dict[str, int]:
    """Return what the audit finds wrong once `spoil` has changed the journal, which stays as it is."""
    found, url = storm
    journal = Journal(url)
    policy, _ = load_policy(_POLICY)
    with Session(journal.engine) as session:
        carried_out = {"all": list(session.scalars(select(CommandRecord.id)))}
        session.execute(text("PRAGMA defer_foreign_keys = ON"))
        spoil(session)
        wrong = audit(session, found.answers, carried_out, policy.budget.per_run.interventions)
        session.rollback()
    journal.close()
    return {name: count for name, count in dataclasses.asdict(wrong).items() if count}


def lose_decision(session: Session) -> None:
    """Take one decision of a delivery out."""
    session.delete(session.scalars(select(DecisionRecord).where(DecisionRecord.command_id.is_(None))).first())


def forget_the_end(session: Session) -> None:
    """Let one episode have no end."""
    episode = session.scalars(select(EpisodeRecord).where(EpisodeRecord.resolved_at.is_not(None))).first()
    assert episode is not None
    episode.resolved_at = None


def deny_an_answer(session: Session) -> None:
    """Have a command be applied that the trainers know nothing of."""
    command = session.scalars(select(CommandRecord).where(CommandRecord.cause == "ladder")).first()
    assert command is not None
    command.id = "never carried out"


def order_more(session: Session) -> None:
    """Add an intervention that nobody carried out, and another one that is of no episode."""
    command = session.scalars(select(CommandRecord).where(CommandRecord.cause == "ladder")).first()
    assert command is not None
    values = {
        column.key: getattr(command, column.key)
        for column in CommandRecord.__table__.columns
        if column.key not in {"id", "seq", "rung"}
    }
    for number in range(6):
        session.add(CommandRecord(**values, id=f"more-{number}", seq=None, rung=None))


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lose_decision, "lost_deliveries"),
        (forget_the_end, "lost_episodes"),
        (deny_an_answer, "lost_commands"),
        (order_more, "over_budget"),
    ],
)
def test_the_audit_finds_what_is_wrong(storm: tuple[Storm, str], spoil: Any, wrong: str) -> None:
    """A journal that lacks something, or holds more than it may, does not agree with the answers."""
    assert spoiled(storm, lambda _session: None) == {}
    assert wrong in spoiled(storm, spoil)


def test_an_answer_that_the_journal_does_not_know_is_lost(storm: tuple[Storm, str]) -> None:
    """A 200 without a delivery is the loss that the bar is about."""
    found, url = storm
    unknown = Delivery("never seen", found.answers[0].delivery.episode, resolved=False)
    spoilt = dataclasses.replace(found, answers=[*found.answers, Answer(unknown, 200, 0.1)])
    assert "lost_deliveries" in spoiled((spoilt, url), lambda _session: None)
