"""The address under which operators read incidents."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from trainswitch_controller.journal import Journal
from trainswitch_controller.onset.views import incidents as newest_incidents
from trainswitch_controller.parameters import Limit, RunQuery


def add_incidents(router: APIRouter, journal: Journal) -> None:
    """Add ``/incidents`` to `router`, whose other addresses ask for the operator's token as well."""

    @router.get("/incidents")
    def incidents(run: RunQuery = None, limit: Limit = 100) -> dict[str, Any]:
        return {"incidents": journal.read(lambda session: newest_incidents(session, run, limit))}
