"""What a sink is, and what it is given."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from trainswitch.recording.records import Record


class Derived(NamedTuple):
    """What the statistics know after a record."""

    center: float | None = None
    """Centre line of the loss's control chart; None until there is one."""
    sigma: float | None = None
    """Scale of the loss's control chart, in units of the loss."""


class Sink(Protocol):
    """Writes records of the kinds STEP, LEARNING_RATE and EVALUATION somewhere; used by one thread."""

    def take(self, record: Record, derived: Derived) -> None:
        """Take one record into memory."""

    def flush(self) -> None:
        """Write what was taken.

        Raises:
            OSError: it cannot be written; what was taken is lost.
        """

    def close(self) -> None:
        """Write what was taken, and let go."""
