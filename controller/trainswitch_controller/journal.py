"""The journal's engine and its transactions: what is committed here survives a kill or a power cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from trainswitch_controller.errors import JournalError
from trainswitch_controller.records import SCHEMA_VERSION, Record, StartRecord

Result = TypeVar("Result")

_ATTEMPTS = 5
"""How often a transaction is tried when another controller took the same number or episode meanwhile."""


class Journal:
    """Runs functions in transactions of their own: all of one's changes are durable, or none of them.

    Attributes:
        problem: why the last write failed, as one sentence; None while writing works.
    """

    def __init__(self, url: str) -> None:
        self.problem: str | None = None
        self._name = make_url(url).render_as_string(hide_password=True)
        try:
            self.engine = _engine(url)
        except (SQLAlchemyError, ImportError) as error:
            raise JournalError(
                f"the journal {self._name} cannot be used: {_first_line(error)}; check journal_url and "
                "install its driver."
            ) from error
        self._reading = sessionmaker(self.engine, expire_on_commit=False)
        self._writing = sessionmaker(
            self.engine.execution_options(trainswitch_writes=True), expire_on_commit=False
        )
        # SQLite has one writer at a time, and its own way of waiting is to sleep up to 100 ms.
        self._lock = threading.Lock()

    def open(self) -> None:
        """Create the tables where they are missing.

        Raises:
            JournalError: the journal cannot be opened, or was written by a newer trainswitch.
        """

        def prepare(session: Session) -> int | None:
            Record.metadata.create_all(session.connection())
            return session.scalar(select(func.max(StartRecord.schema_version)))

        newest = self.write(prepare)
        if newest is not None and newest > SCHEMA_VERSION:
            raise JournalError(
                f"the journal {self._name} has schema {newest} and this trainswitch writes {SCHEMA_VERSION}: "
                "upgrade it."
            )

    def write(self, work: Callable[[Session], Result]) -> Result:
        """Run `work` in one transaction, commit it, and return its result.

        `work` may be run again from the beginning, so it must have no effect outside its session.

        Raises:
            JournalError: the transaction could not be committed; nothing of it is stored.
        """
        return self._attempt(work, _ATTEMPTS)

    def read(self, work: Callable[[Session], Result]) -> Result:
        """Run `work` in one reading transaction and return its result.

        Raises:
            JournalError: the journal cannot be read.
        """
        try:
            with self._reading() as session:
                return work(session)
        except SQLAlchemyError as error:
            raise JournalError(f"the journal {self._name} cannot be read: {_first_line(error)}.") from error

    def probe(self) -> None:
        """Write without changing anything, to learn whether writing works again.

        Raises:
            JournalError: it does not.
        """

        def touch(session: Session) -> None:
            newest = session.scalar(select(StartRecord).order_by(StartRecord.epoch.desc()).limit(1))
            if newest is not None:
                session.execute(
                    StartRecord.__table__.update()  # type: ignore[attr-defined]
                    .where(StartRecord.epoch == newest.epoch)
                    .values(at=newest.at)
                )

        self.write(touch)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _attempt(self, work: Callable[[Session], Result], attempts_left: int) -> Result:
        try:
            with self._lock, self._writing.begin() as session:
                result = work(session)
        except SQLAlchemyError as error:
            if isinstance(error, IntegrityError) and attempts_left > 1:
                return self._attempt(work, attempts_left - 1)
            self.problem = (
                f"the journal {self._name} cannot be written: {_first_line(error)}; check its disk or server."
            )
            raise JournalError(self.problem) from error
        self.problem = None
        return result


def _engine(url: str) -> Engine:
    """Return the engine for `url`; the only place that knows one database from another."""
    engine = create_engine(url, pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # Transactions begin where _begin_sqlite says, not where the driver guesses.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # FULL makes a commit in WAL mode wait for the disk: what was promised survives a power cut.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins by reading and then writes can fail where waiting would have helped.
    writes = connection.get_execution_options().get("trainswitch_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:300].rstrip(".")
