"""Several pieces of work in one transaction: a storm waits for the disk once a batch, not once a delivery."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

Result = TypeVar("Result")

_ATTEMPTS = 5
"""How often work is tried when another controller took the same number or episode meanwhile."""


class Job(Generic[Result]):
    """One piece of work: a function of a session whose changes are committed all, or not at all.

    Attributes:
        done: whether it was committed, or failed.
    """

    def __init__(self, work: Callable[[Session], Result]) -> None:
        self.done = False
        self._woken = threading.Event()
        self._work = work
        self._results: list[Result] = []
        self._error: Exception | None = None

    def result(self) -> Result:
        """Return what the work returned once it was committed, or raise what stood in its way."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def wait(self) -> None:
        """Wait until it is done, or it is this work's turn."""
        self._woken.wait()

    def wake(self) -> None:
        """End the wait."""
        self._woken.set()

    def run(self, connection: Connection) -> None:
        """Work in the transaction of `connection`, in a savepoint: a fault of its own undoes nothing else.

        Raises:
            SQLAlchemyError: the transaction as a whole cannot go on.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            session = Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
            try:
                with session, session.begin():
                    self._results = [self._work(session)]
            except IntegrityError as error:
                self._error = error
                if attempt < _ATTEMPTS:
                    continue
            except SQLAlchemyError as error:
                if ends_transaction(error):
                    raise
                self._error = error
            except Exception as error:  # noqa: BLE001 - raised again in the thread that asked for the work
                self._error = error
            else:
                self._error = None
            return

    def fail(self, error: Exception, cause: BaseException) -> None:
        """Note that nothing of it is stored; `result` raises `error`."""
        error.__cause__ = cause
        self._error = error
        self.done = True

    def conclude(self, failure: Callable[[SQLAlchemyError], Exception]) -> SQLAlchemyError | None:
        """Note that the transaction was committed; return the fault of this work, if the database had one.

        `failure` makes of such a fault what `result` raises.
        """
        fault = self._error if isinstance(self._error, SQLAlchemyError) else None
        if fault is not None:
            self.fail(failure(fault), fault)
        self.done = True
        return fault


def commit_together(engine: Engine, jobs: Sequence[Job[Any]]) -> None:
    """Run `jobs` one after the other in one transaction, and commit it.

    Raises:
        SQLAlchemyError: it could not be committed; nothing of any of them is stored.
    """
    with engine.connect() as connection, connection.begin():
        for job in jobs:
            job.run(connection)


def ends_transaction(error: SQLAlchemyError) -> bool:
    """Return whether `error` is the end of its transaction, such as a full disk or a lost server."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or isinstance(error, OperationalError)
    return True
