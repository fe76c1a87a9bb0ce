"""What the policy would do about an alert of a run, by what the journal knows of it."""

from __future__ import annotations

import dataclasses

from sqlalchemy import select

from trainswitch_controller.decide import decide
from trainswitch_controller.explain import Explanation, Firing, explain
from trainswitch_controller.facts import Trouble
from trainswitch_controller.history import gather
from trainswitch_controller.records import EpisodeRecord
from trainswitch_controller.unit import Unit

MAX_FIRING = 20
"""So many alerts that fire already are explained, the newest ones."""


def explain_run(unit: Unit, alertname: str, run: str) -> Explanation:
    """Return what `alertname` would lead to for `run` now, and what becomes of it where it fires already."""
    imagined = EpisodeRecord(alertname=alertname, run=run, starts_at=unit.now, settled=False)
    found = explain(unit.policy, alertname, unit.now, run=run, history=gather(unit, imagined))
    episodes = unit.session.scalars(
        select(EpisodeRecord)
        .where(
            EpisodeRecord.run == run,
            EpisodeRecord.alertname == alertname,
            EpisodeRecord.resolved_at.is_(None),
        )
        .order_by(EpisodeRecord.id.desc())
        .limit(MAX_FIRING)
    ).all()
    firing = tuple(
        Firing(
            episode.id,
            episode.starts_at,
            decide(unit.policy, gather(unit, episode), Trouble(alertname, run, episode.starts_at), unit.now),
        )
        for episode in episodes
    )
    return dataclasses.replace(found, firing=firing)
