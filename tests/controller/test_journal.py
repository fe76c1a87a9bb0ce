"""The journal: durable, whole, and not tied to one database."""

from __future__ import annotations

import concurrent.futures
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_mock_engine, event, select, text
from sqlalchemy.orm import Session

import trainswitch_controller
from trainswitch_controller.errors import JournalError
from trainswitch_controller.journal import Journal
from trainswitch_controller.records import Record, StartRecord


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    """An open journal on SQLite."""
    journal = Journal(f"sqlite:///{tmp_path / 'journal.db'}?timeout=0.1")
    journal.open()
    yield journal
    journal.close()


def start(epoch: int) -> Callable[[Session], None]:
    """Return the work that adds one row."""

    def add(session: Session) -> None:
        session.add(StartRecord(epoch=epoch, at=0.0, schema_version=1, policy_sha256=""))

    return add


def epochs(journal: Journal) -> list[int]:
    """Return the rows that are stored."""
    return list(journal.read(lambda session: session.scalars(select(StartRecord.epoch)).all()))


def test_sqlite_waits_for_the_disk(journal: Journal) -> None:
    """Every connection uses the write-ahead log and flushes each commit: 1 is WAL's name, 2 is FULL."""
    for _ in range(2):
        with journal.engine.connect() as connection:
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
            assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
            assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1


def test_a_transaction_that_fails_leaves_nothing(journal: Journal) -> None:
    """What was added before the fault is gone with it."""

    def fail(session: Session) -> None:
        start(1)(session)
        session.flush()
        raise LookupError

    with pytest.raises(LookupError):
        journal.write(fail)
    assert epochs(journal) == []


def test_a_number_taken_by_another_controller_is_taken_again(journal: Journal) -> None:
    """A transaction that collides runs again from its beginning, on the facts as they are then."""
    tries = []

    def collide(session: Session) -> int:
        tries.append(1)
        taken = session.scalars(select(StartRecord.epoch)).all()
        epoch = 1 if len(tries) == 1 else len(taken) + 1
        start(epoch)(session)
        return epoch

    journal.write(start(1))
    assert journal.write(collide) == 2
    assert (len(tries), epochs(journal)) == (2, [1, 2])


def test_a_collision_that_stays_is_an_error(journal: Journal) -> None:
    """Nothing is tried for ever: the caller learns that it was not stored."""
    journal.write(start(1))
    with pytest.raises(JournalError, match="UNIQUE constraint failed"):
        journal.write(start(1))
    assert "UNIQUE" in (journal.problem or "")


def test_writers_wait_for_each_other(journal: Journal) -> None:
    """Twenty threads that read and then write lose nothing and get no lock error."""

    def add(session: Session) -> None:
        start(len(session.scalars(select(StartRecord.epoch)).all()) + 1)(session)

    threads = [threading.Thread(target=journal.write, args=(add,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(epochs(journal)) == list(range(1, 21))


def test_a_probe_finds_out_that_writing_works_again(journal: Journal, tmp_path: Path) -> None:
    """A locked journal is a problem until the probe succeeds, and the probe changes nothing."""
    journal.write(start(1))
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="database is locked"):
        journal.probe()
    assert journal.problem is not None
    assert epochs(journal) == [1]
    other.close()
    journal.probe()
    assert journal.problem is None


def test_an_index_that_an_earlier_version_lacked_is_made(journal: Journal) -> None:
    """Opening a journal whose tables exist already brings their indexes up to date, and nothing else."""
    with journal.engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_episodes_trouble")
    journal.write(start(1))
    journal.open()
    with journal.engine.connect() as connection:
        names = (
            connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'index'").scalars().all()
        )
    assert "ix_episodes_trouble" in names
    assert epochs(journal) == [1]


@pytest.mark.parametrize("harmless", [True, False])
def test_work_is_committed_together_and_fails_alone(harmless: bool, journal: Journal) -> None:
    """Work that waits for the writer shares one commit; a fault of one undoes nothing of the others."""
    entered, released = threading.Event(), threading.Event()
    commits: list[object] = []
    event.listen(journal.engine, "commit", commits.append)

    def hold(_session: Session) -> None:
        entered.set()
        assert released.wait(20)

    def fault(session: Session) -> None:
        start(5)(session)
        session.flush()
        raise LookupError("one's own")

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        first = pool.submit(journal.write, hold)
        assert entered.wait(20)
        others = [pool.submit(journal.write, start(number)) for number in (1, 2, 3)]
        odd = pool.submit(journal.write, start(4) if harmless else fault)
        while len(journal._waiting) < 4:
            time.sleep(0.001)
        released.set()
        first.result()
        for other in others:
            other.result()
        if harmless:
            odd.result()
        else:
            with pytest.raises(LookupError, match="one's own"):
                odd.result()
    assert sorted(epochs(journal)) == ([1, 2, 3, 4] if harmless else [1, 2, 3])
    assert len(commits) == 2


def test_a_commit_that_fails_fails_for_all_that_shared_it(journal: Journal, tmp_path: Path) -> None:
    """Nobody is told that something is stored which is not, and the next work finds its turn."""
    other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        given = [pool.submit(journal.write, start(number)) for number in range(1, 9)]
        for one in given:
            with pytest.raises(JournalError, match="database is locked"):
                one.result(timeout=20)
    other.close()
    journal.write(start(1))
    assert epochs(journal) == [1]


def test_a_newer_journal_is_refused(journal: Journal) -> None:
    """A journal whose tables may mean something else is not touched."""
    journal.write(
        lambda session: session.add(StartRecord(epoch=1, at=0.0, schema_version=99, policy_sha256=""))
    )
    with pytest.raises(JournalError, match=r"schema 99 .* upgrade"):
        journal.open()


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "unable to open database file"), (b"no database at all" * 100, "not a database")],
)
def test_a_file_that_is_no_journal_is_named(content: bytes | None, words: str, tmp_path: Path) -> None:
    """The sentence names the journal and what SQLite says."""
    path = tmp_path / ("none/journal.db" if content is None else "journal.db")
    if content is not None:
        path.write_bytes(content)
    journal = Journal(f"sqlite:///{path}")
    with pytest.raises(JournalError, match=words):
        journal.open()
    journal.close()


def test_a_driver_that_is_missing_is_named_without_the_password() -> None:
    """The password of the URL never reaches a log."""
    with pytest.raises(JournalError, match="install its driver") as refused:
        Journal("postgresql+nosuchdriver://user:hunter2@db/x")
    assert "hunter2" not in str(refused.value)


def test_the_tables_exist_for_postgresql_too() -> None:
    """The schema renders in PostgreSQL's dialect, with times in double precision and steps in 64 bits."""
    rendered: list[str] = []
    engine: Any = create_mock_engine(
        "postgresql+psycopg2://",
        lambda statement, *_: rendered.append(str(statement.compile(dialect=engine.dialect))),
    )
    Record.metadata.create_all(engine, checkfirst=False)
    schema = "\n".join(rendered)
    assert schema.count("CREATE TABLE") == len(Record.metadata.tables)
    assert "created_at DOUBLE PRECISION NOT NULL" in schema
    assert "step BIGINT" in schema
    assert "UNIQUE (episode_id, rung)" in schema


def test_only_the_engine_knows_sqlite() -> None:
    """Nothing outside the engine's setup may depend on one database."""
    package = Path(trainswitch_controller.__file__).parent
    knowing = {
        path.name
        for path in package.glob("*.py")
        if re.search(r"sqlite", re.sub(r'""".*?"""', "", path.read_text(), flags=re.DOTALL), re.IGNORECASE)
    }
    assert knowing == {"engine.py", "settings.py"}
