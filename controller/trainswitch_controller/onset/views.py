"""Incidents as the API's JSON objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from trainswitch_controller.onset.incidents import IncidentRecord
from trainswitch_controller.records import EpisodeRecord


def incidents(session: Session, run: str | None, limit: int) -> list[dict[str, Any]]:
    """Return the newest incidents, of one run or of all."""
    query = select(IncidentRecord).order_by(IncidentRecord.id.desc()).limit(limit)
    if run is not None:
        query = query.where(IncidentRecord.run == run)
    return [incident_view(one) for one in session.scalars(query)]


def of_episodes(session: Session, episodes: Sequence[EpisodeRecord]) -> dict[int, dict[str, Any]]:
    """Return episode id → its incident, of those that have one."""
    by_key = {(one.fingerprint, one.starts_at): one.id for one in episodes}
    query = select(IncidentRecord).where(
        tuple_(IncidentRecord.fingerprint, IncidentRecord.starts_at).in_(list(by_key))
    )
    return {by_key[one.fingerprint, one.starts_at]: incident_view(one) for one in session.scalars(query)}


def incident_view(incident: IncidentRecord) -> dict[str, Any]:
    """Return one incident; times in Unix seconds, onset null where nothing had left its band."""
    return {
        "alertname": incident.alertname,
        "run": incident.run,
        "fingerprint": incident.fingerprint,
        "starts_at": incident.starts_at,
        "found_at": incident.at,
        "onset_at": incident.onset_at,
        "onset_step": incident.onset_step,
        "suspects": incident.suspects,
        "departures": incident.departures,
    }
