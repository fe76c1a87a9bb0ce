"""Which of several controllers leads: it alone writes ``commands.json`` and reads the trainers' answers."""

from __future__ import annotations

import logging
from typing import Protocol

import filelock
from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from trainswitch_controller.errors import JournalError

log = logging.getLogger(__name__)


class Leadership(Protocol):
    """What a controller holds while it leads."""

    def hold(self) -> bool:
        """Take it or keep it, and return whether this controller has it now. Ask right before each write."""

    def release(self) -> None:
        """Give it up, so that another controller need not wait."""


class Alone:
    """Of a controller that shares its journal with none."""

    def hold(self) -> bool:
        """Return True: nobody else could lead."""
        return True

    def release(self) -> None:
        """Do nothing."""


class SessionLock:
    """A lock that PostgreSQL keeps for exactly as long as the session that took it.

    The session is a connection of its own. It ends with the process, and with the network; the server also
    ends it when nothing was heard of it for `patience` seconds: a leader that stands still loses its place.
    """

    def __init__(self, engine: Engine, key: int, patience: float) -> None:
        self._engine = engine
        self._key = key
        self._patience_ms = round(patience * 1000)
        self._connection: Connection | None = None
        self._held = False

    def hold(self) -> bool:
        """Take the lock where it is free, and return whether the server still keeps it for this session."""
        try:
            if self._held:
                self._session().execute(text("SELECT 1"))
            else:
                taken = self._session().scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": self._key})
                self._held = bool(taken)
        except SQLAlchemyError as error:
            if self._held:
                log.warning("the session that leads is lost: %s", str(error).partition("\n")[0][:300])
            self._forget()
        return self._held

    def release(self) -> None:
        """End the session, and the lock with it."""
        self._forget()
        self._engine.dispose()

    def _session(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect()
            self._connection.execute(text(f"SET idle_session_timeout = {self._patience_ms}"))
            self._connection.execute(text("SET statement_timeout = 3000"))
        return self._connection

    def _forget(self) -> None:
        self._held = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()


class FileLock:
    """Keeps a second controller off a journal that only one can use; freed by the end of the process.

    Raises:
        JournalError: another controller has it.
    """

    def __init__(self, path: str, journal: str) -> None:
        self._lock = filelock.FileLock(path, blocking=False)
        try:
            self._lock.acquire()
        except filelock.Timeout:
            raise JournalError(
                f"the journal {journal} is in use by another controller: stop that one, or give several "
                "controllers one journal on PostgreSQL (postgresql+psycopg://…)."
            ) from None
        except OSError as error:
            # Without its folder the journal itself cannot be opened either, and says so.
            log.warning("no lock at %s: %s", path, error.strerror or error)

    def release(self) -> None:
        """Give it up."""
        self._lock.release()
