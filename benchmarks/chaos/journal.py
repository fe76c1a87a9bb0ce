"""Reads the controller's database past the controller: what it really committed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from pathlib import Path
from typing import Any

FINAL = frozenset({"applied", "refused", "failed", "expired", "superseded", "rejected"})


@dataclasses.dataclass(frozen=True)
class JournaledCommand:
    """One command with its answer."""

    id: str
    action: str
    params: dict[str, Any]
    cause: str
    state: str
    detail: str
    rung: int | None
    alertname: str | None
    starts_at: float | None
    """Of its episode, in Unix seconds; None for an operator's command."""
    seq: int | None
    step: int | None
    """Of the trainer when it answered."""

    @property
    def name(self) -> str:
        """What a finding calls it."""
        origin = f"rung {self.rung} of {self.alertname}" if self.alertname else self.cause
        return f"command {self.id[:8]} ({self.action}, {origin}, seq {self.seq})"


class JournalFile:
    """The database; it is read while the controller writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def commands(self, run: str) -> list[JournaledCommand]:
        """Return the commands of `run` in the order of their numbers."""
        rows = self._rows(
            """
            SELECT c.id, c.action, c.params, c.cause, c.state, c.detail, c.rung, c.alertname,
                   e.starts_at, c.seq, c.step
            FROM commands c LEFT JOIN episodes e ON e.id = c.episode_id
            WHERE c.run = ? ORDER BY c.seq
            """,
            run,
        )
        return [
            JournaledCommand(id_, action, json.loads(params), *rest) for id_, action, params, *rest in rows
        ]

    def marks(self) -> set[str]:
        """Return the receivers of all deliveries."""
        return {mark for (mark,) in self._rows("SELECT receiver FROM deliveries")}

    def outcomes(self, run: str) -> dict[str, list[str]]:
        """Return what was decided about each alert of `run`, oldest first, by the alert's name."""
        found: dict[str, list[str]] = {}
        for alertname, outcome in self._rows(
            "SELECT alertname, outcome FROM decisions WHERE run = ? ORDER BY id", run
        ):
            found.setdefault(alertname, []).append(outcome)
        return found

    def _rows(self, query: str, *values: object) -> list[Any]:
        if not self._path.exists():
            return []
        with contextlib.closing(
            sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=10.0)
        ) as base:
            return base.execute(query, values).fetchall()
