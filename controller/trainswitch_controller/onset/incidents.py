"""The journal's incidents: of each alert, when its trouble began and who is suspected."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Index, String, UniqueConstraint, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from trainswitch_controller.onset.suspects import Finding
from trainswitch_controller.records import EpisodeRecord, Record


class IncidentRecord(Record):
    """What was found about one episode, which has the same fingerprint and beginning; written once.

    It may be there before its episode is: it is found beside the delivery's transaction, so that no answer of
    Prometheus can hold that up.
    """

    __tablename__ = "incidents"
    __table_args__ = (UniqueConstraint("fingerprint", "starts_at"), Index("ix_incidents_run", "run"))

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(128))
    starts_at: Mapped[float]
    alertname: Mapped[str]
    run: Mapped[str] = mapped_column(String(128))
    at: Mapped[float]
    """When it was found."""
    onset_at: Mapped[float | None]
    onset_step: Mapped[int | None] = mapped_column(BigInteger)
    """The highest step whose state is surely from before the onset."""
    departures: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    suspects: Mapped[list[dict[str, Any]]] = mapped_column(JSON)


def store(
    session: Session,
    *,
    fingerprint: str,
    starts_at: float,
    alertname: str,
    run: str,
    at: float,
    finding: Finding,
) -> bool:
    """Add what was found about an episode at `at` (Unix seconds); return False where it has an incident."""
    if of_episode(session, fingerprint, starts_at) is not None:
        return False
    session.add(
        IncidentRecord(
            fingerprint=fingerprint,
            starts_at=starts_at,
            alertname=alertname,
            run=run,
            at=at,
            onset_at=finding.onset_at,
            onset_step=finding.onset_step,
            departures=list(finding.departures),
            suspects=list(finding.suspects),
        )
    )
    return True


def of_episode(session: Session, fingerprint: str, starts_at: float) -> IncidentRecord | None:
    """Return the incident of an episode, or None."""
    return session.scalar(
        select(IncidentRecord).where(
            IncidentRecord.fingerprint == fingerprint, IncidentRecord.starts_at == starts_at
        )
    )


def is_known(session: Session, fingerprint: str, starts_at: float) -> bool:
    """Return whether the journal holds an episode or its incident already."""
    episode = select(EpisodeRecord.id).where(
        EpisodeRecord.fingerprint == fingerprint, EpisodeRecord.starts_at == starts_at
    )
    return session.scalar(episode) is not None or of_episode(session, fingerprint, starts_at) is not None
