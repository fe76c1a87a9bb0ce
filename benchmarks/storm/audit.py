"""Compares what was answered in the storm with what the journal holds and what trainers carried out."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.storm.client import Answer
from trainswitch_controller.journal import Journal
from trainswitch_controller.records import (
    OPEN_STATES,
    CommandRecord,
    DecisionRecord,
    DeliveryRecord,
    EpisodeRecord,
)

_SETTLED_S = 30.0


@dataclasses.dataclass(frozen=True)
class Audit:
    """What does not agree; all zero where nothing was lost or doubled."""

    lost_deliveries: int
    """Answered with 200, and not in the journal with one decision for their alert."""
    doubled_deliveries: int
    lost_episodes: int
    """Answered with 200, and not in the journal, or not as resolved."""
    doubled_episodes: int
    lost_commands: int
    """Answered with ``acted``, and no command; or a command that no trainer carried out."""
    doubled_commands: int
    """Commands beyond the first for one rung of an episode, and commands carried out twice."""
    over_budget: int
    """Interventions beyond the budget of their run."""

    @property
    def agrees(self) -> bool:
        """Whether everything that was promised was kept."""
        return not any(dataclasses.astuple(self))


def wait_until_settled(journal: Journal) -> bool:
    """Wait until no command is open any more, and return whether that came."""
    deadline = time.monotonic() + _SETTLED_S
    still_open = select(func.count()).where(CommandRecord.state.in_(OPEN_STATES))
    while journal.read(lambda session: session.scalar(still_open)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def audit(
    session: Session, answers: Sequence[Answer], carried_out: dict[str, list[str]], per_run: int
) -> Audit:
    """Return what does not agree.

    Args:
        session: of the journal.
        answers: every answer of the storm.
        carried_out: run → ids of commands, as the trainers say it.
        per_run: interventions that the policy's budget allows a run.
    """
    accepted = [answer for answer in answers if answer.status == 200]
    deliveries = collections.Counter(session.scalars(select(DeliveryRecord.group_key)))
    decided = collections.Counter(
        session.scalars(
            select(DeliveryRecord.group_key).join(
                DecisionRecord, DecisionRecord.delivery_id == DeliveryRecord.id
            )
        )
    )
    episodes = collections.Counter(session.scalars(select(EpisodeRecord.fingerprint)))
    ended = set(
        session.scalars(select(EpisodeRecord.fingerprint).where(EpisodeRecord.resolved_at.is_not(None)))
    )
    commands = session.scalars(select(CommandRecord)).all()
    rungs = collections.Counter((one.episode_id, one.rung) for one in commands if one.rung is not None)
    interventions = collections.Counter(one.run for one in commands if one.cause == "ladder")
    done = collections.Counter(command for ids in carried_out.values() for command in ids)
    acted = sum(answer.outcomes.count("acted") for answer in accepted)
    return Audit(
        lost_deliveries=sum(
            deliveries[one.delivery.key] < 1 or decided[one.delivery.key] != 1 for one in accepted
        ),
        doubled_deliveries=_beyond_one(deliveries),
        lost_episodes=sum(
            not episodes[one.delivery.episode.fingerprint]
            or (one.delivery.resolved and one.delivery.episode.fingerprint not in ended)
            for one in accepted
        ),
        doubled_episodes=_beyond_one(episodes),
        # One that a cooldown's end brings after all was settled may be open still.
        lost_commands=max(0, acted - len(rungs))
        + sum(one.state not in OPEN_STATES and not done[one.id] for one in commands),
        doubled_commands=_beyond_one(rungs) + _beyond_one(done),
        over_budget=sum(max(0, count - per_run) for count in interventions.values()),
    )


def _beyond_one(counted: Mapping[Any, int]) -> int:
    return sum(count - 1 for count in counted.values() if count > 1)
