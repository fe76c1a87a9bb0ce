"""The journal's transactions: what is committed here survives a kill or a power cut."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from trainswitch_controller.batch import Job, commit_together
from trainswitch_controller.engine import WRITING, is_shared, make_engine
from trainswitch_controller.errors import JournalError
from trainswitch_controller.records import SCHEMA_VERSION, Record, StartRecord

Result = TypeVar("Result")

_TOGETHER = 16
"""How many pieces of work are committed together at most: each waits for all of them."""


class Journal:
    """Runs functions in transactions of their own: all of one's changes are durable, or none of them.

    Attributes:
        shared: whether other controllers may use the same journal.
        problem: why the last write failed, as one sentence; None while writing works.
    """

    def __init__(self, url: str) -> None:
        self.problem: str | None = None
        self._name = make_url(url).render_as_string(hide_password=True)
        try:
            self.engine = make_engine(url)
        except (SQLAlchemyError, ImportError) as error:
            raise JournalError(
                f"the journal {self._name} cannot be used: {_first_line(error)}; check journal_url and "
                "install its driver."
            ) from error
        self.shared = is_shared(url)
        self._reading = sessionmaker(self.engine, expire_on_commit=False)
        self._writer = self.engine.execution_options(**{WRITING: True})
        # One writer at a time, in the order of asking: databases' own ways of waiting are slow, or know no
        # order. Of the threads that wait, the first commits for those behind it as well.
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: collections.deque[Job[Any]] = collections.deque()

    def open(self) -> None:
        """Create the tables where they are missing.

        Raises:
            JournalError: the journal cannot be opened, or was written by a newer trainswitch.
        """

        def prepare(session: Session) -> int | None:
            Record.metadata.create_all(session.connection())
            for table in Record.metadata.tables.values():  # a table of an earlier version may lack some
                for index in table.indexes:
                    index.create(session.connection(), checkfirst=True)
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
        job = Job(work)
        with self._lock:
            self._waiting.append(job)
            leads, self._busy = not self._busy, True
        if not leads:
            job.wait()
        if not job.done:
            self._lead()
        return job.result()

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

    def _lead(self) -> None:
        """Commit what has waited longest, the caller's own work first, and let the next one lead."""
        with self._lock:
            jobs = [self._waiting.popleft() for _ in range(min(len(self._waiting), _TOGETHER))]
        try:
            self._commit(jobs)
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._busy = following is not None
            for job in jobs:
                job.wake()
            if following is not None:
                following.wake()

    def _commit(self, jobs: Sequence[Job[Any]]) -> None:
        try:
            commit_together(self._writer, jobs)
        except SQLAlchemyError as error:
            for job in jobs:
                job.fail(self._failure(error), error)
            self.problem = str(self._failure(error))
            return
        except BaseException as error:
            for job in jobs:
                job.fail(JournalError(f"the journal {self._name} was interrupted: {error!r}."), error)
            raise
        faults = [fault for job in jobs if (fault := job.conclude(self._failure)) is not None]
        self.problem = str(self._failure(faults[-1])) if faults else None

    def _failure(self, error: SQLAlchemyError) -> JournalError:
        return JournalError(
            f"the journal {self._name} cannot be written: {_first_line(error)}; check its disk or server."
        )


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:300].rstrip(".")
