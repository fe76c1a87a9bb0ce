"""What the policy would have done about a replay's episodes: the controller's journal, in replayed time."""

from __future__ import annotations

import dataclasses
import datetime as dt
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import create_engine, func, select
from sqlalchemy.orm import Session

from trainswitch_controller import intake, orders
from trainswitch_controller.alerts import Alert, Webhook
from trainswitch_controller.control_folder import ControlFolder
from trainswitch_controller.policy import Policy
from trainswitch_controller.records import CommandRecord, DecisionRecord, EpisodeRecord, Record
from trainswitch_controller.replay.model import Episode, Intervention, ReplayedRun, ReplayResult
from trainswitch_controller.unit import Unit


def simulate(result: ReplayResult, policy: Policy) -> ReplayResult:
    """Return `result` with the interventions of `policy`.

    Each run is judged as if it was the only one. The controller hears at once of what Alertmanager's route
    sends it: critical episodes with an action. The seconds of the replay are its Unix time. Every command is
    answered as applied at the moment at which it is given, but the log goes on as it was recorded: what
    follows an intervention is what came without it.
    """
    runs = (dataclasses.replace(run, interventions=_of_run(run, policy, result.pace)) for run in result.runs)
    return dataclasses.replace(result, runs=tuple(runs))


def document(intervention: Intervention) -> dict[str, Any]:
    """Return an intervention for programs."""
    return {**dataclasses.asdict(intervention), "params": dict(intervention.params)}


class _News(NamedTuple):
    """What Alertmanager tells the controller at one moment."""

    at: float
    resolved: bool
    episode: Episode


def _of_run(run: ReplayedRun, policy: Policy, pace: float) -> tuple[Intervention, ...]:
    sent = [episode for episode in run.episodes if episode.severity == "critical" and episode.action]
    if not sent:
        return ()
    engine = create_engine("sqlite://")
    try:
        Record.metadata.create_all(engine)
        with tempfile.TemporaryDirectory() as folder, Session(engine) as session:
            unit = Unit(session, policy, ControlFolder(Path(folder)), now=0.0)
            _play(unit, sent)
            return tuple(_interventions(session, run, pace))
    finally:
        engine.dispose()


def _play(unit: Unit, episodes: Iterable[Episode]) -> None:
    """Tell the controller of `episodes`, and let it decide again where a cooldown ends meanwhile."""
    news = sorted(
        _News(at, resolved, episode)
        for episode in episodes
        for at, resolved in ((episode.start, False), (episode.end, True))
    )
    for one in news:
        while (due := _next_retry(unit)) is not None and due <= one.at:
            unit.now = due
            intake.reconsider(unit)
            _answer(unit)
        unit.now = one.at
        intake.receive(unit, _webhook(one))
        _answer(unit)


def _next_retry(unit: Unit) -> float | None:
    return unit.session.scalar(
        select(func.min(EpisodeRecord.retry_at)).where(EpisodeRecord.resolved_at.is_(None))
    )


def _answer(unit: Unit) -> None:
    """Answer every command that is due, as carried out at once; an answer may bring another command."""
    due = select(CommandRecord).where(CommandRecord.state == "pending").order_by(CommandRecord.seq)
    while commands := unit.session.scalars(due).all():
        for command in commands:
            orders.finish(unit, command, "applied", at=unit.now)
            unit.session.flush()


def _webhook(news: _News) -> Webhook:
    episode = news.episode
    labels = {"alertname": episode.alert, "run": episode.run, "severity": episode.severity}
    alert = Alert(
        status="resolved" if news.resolved else "firing",
        labels=labels,
        starts_at=dt.datetime.fromtimestamp(episode.start, dt.timezone.utc),
        fingerprint=f"{episode.alert}/{episode.severity}",
    )
    return Webhook(version="4", alerts=(alert,))


def _interventions(session: Session, run: ReplayedRun, pace: float) -> Iterator[Intervention]:
    """Yield what the journal says was decided, and the ends of pauses; an alert's end decides no more."""
    rows = len(run.run.rows)

    def intervention(at: float, **said: Any) -> Intervention:
        row = min(max(0, int(at // pace)), rows - 1)
        return Intervention(run=run.run.id, row=row, at=at, **said)

    decided = select(DecisionRecord).order_by(DecisionRecord.id)
    resumed = select(CommandRecord).where(CommandRecord.cause == "resume")
    resumes = {command.id: command for command in session.scalars(resumed)}
    for decision in session.scalars(decided):
        alert = decision.alertname
        resume = resumes.get(decision.command_id or "")
        if resume is not None:
            yield intervention(
                resume.created_at,
                alert=alert,
                outcome="acted",
                action="resume",
                params={},
                reason=resume.reason,
            )
        elif decision.outcome != "resolved":
            yield intervention(
                decision.at,
                alert=alert,
                outcome=decision.outcome,
                action=decision.action,
                params=decision.params,
                reason=decision.reason,
            )
