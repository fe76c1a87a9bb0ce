"""Python's lock, which the threads of the monitor share with the training thread."""

from __future__ import annotations

from time import perf_counter, sleep

_TURN_SECONDS = 5e-4
_MOMENT_SECONDS = 1e-3
_turn_began = 0.0
_shared = True


def share_with_nobody() -> None:
    """Keep the lock from now on: no training thread runs in this process."""
    global _shared
    _shared = False


def let_others_run() -> None:
    """Give the lock away for a moment, if this thread has had it for long; called between pieces of work.

    A thread that waits for the lock gets it only after five milliseconds otherwise, and the training thread
    may wait for it after every operation. The moment is long enough for a short step to get ahead. Each one
    costs a waking, about as much as fifty lines of a scrape do, so there is none after every piece.
    """
    global _turn_began
    if _shared and perf_counter() - _turn_began >= _TURN_SECONDS:
        sleep(_MOMENT_SECONDS)
        _turn_began = perf_counter()
