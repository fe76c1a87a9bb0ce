"""Python's lock, which the threads of the monitor share with the training thread."""

from __future__ import annotations

import time

_MOMENT_SECONDS = 1e-3


def let_others_run() -> None:
    """Give the lock away for a moment.

    A thread that waits for the lock gets it only after five milliseconds otherwise, and the training thread
    may wait for it after every operation. The moment is long enough for a short step to get ahead.
    """
    time.sleep(_MOMENT_SECONDS)
