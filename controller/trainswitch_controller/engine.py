"""The journal's database: the only place that knows one from another.

Either way there is one writer at a time, and what is committed is on the disk: SQLite locks its file, and on
PostgreSQL writers of all controllers take one lock. So no decision is made on facts that another one changes
meanwhile, and budgets, numbers and rungs need no other protection.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection, make_url
from sqlalchemy.pool import NullPool

from trainswitch_controller.leadership import Alone, FileLock, Leadership, SessionLock

WRITING = "trainswitch_writes"
"""Execution option of connections whose transactions write."""

_WRITERS_KEY = 0x7472_6169_6E00_0001
_LEADERS_KEY = 0x7472_6169_6E00_0002
"""Numbers of the two locks, the same in every controller."""
_SESSION = (
    # A controller that stops in the middle of a transaction must not keep the others waiting.
    "SET idle_in_transaction_session_timeout = '3s'",
    "SET lock_timeout = '10s'",
    "SET statement_timeout = '30s'",
    # What was answered with 200 survives a power cut, whatever the server's default is.
    """SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')""",
)
_LIBPQ = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""A server that is gone without a word is noticed in seconds."""


def make_engine(url: str) -> Engine:
    """Return the engine for the journal at `url`."""
    parsed = make_url(url)
    if _is_sqlite(parsed):
        engine = create_engine(parsed, pool_pre_ping=True)
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    engine = create_engine(
        parsed,
        pool_pre_ping=True,
        # Writers are one at a time already, so nothing is gained by a higher level but refusals.
        isolation_level="READ COMMITTED",
        connect_args=_connect_args(parsed),
    )
    event.listen(engine, "connect", _set_up_session)
    event.listen(engine, "begin", _begin_session)
    return engine


def is_shared(url: str) -> bool:
    """Return whether several controllers can use the journal at `url`."""
    return not _is_sqlite(make_url(url))


def leadership(url: str, patience: float) -> Leadership:
    """Return by what a controller leads those that share the journal at `url`.

    Args:
        url: of the journal.
        patience: seconds for which a leader may be silent before another one takes its place.
    """
    parsed = make_url(url)
    if _is_sqlite(parsed):
        return Alone()
    engine = create_engine(
        parsed, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=_connect_args(parsed)
    )
    return SessionLock(engine, _LEADERS_KEY, patience)


def claim(url: str) -> FileLock | None:
    """Return the lock that keeps a second controller off the journal at `url`; None where it may be shared.

    Raises:
        JournalError: another controller uses it.
    """
    parsed = make_url(url)
    if not _is_sqlite(parsed):
        return None
    return FileLock(f"{parsed.database}.controller.lock", parsed.render_as_string(hide_password=True))


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _connect_args(url: URL) -> dict[str, Any]:
    return dict(_LIBPQ) if url.get_driver_name() in {"psycopg", "psycopg2"} else {}


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
    writes = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _set_up_session(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for statement in _SESSION:
        cursor.execute(statement)
    cursor.close()
    connection.commit()


def _begin_session(connection: Connection) -> None:
    # Taken before anything is read, and given back by the end of the transaction, however it ends.
    if connection.get_execution_options().get(WRITING, False):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS_KEY})")
