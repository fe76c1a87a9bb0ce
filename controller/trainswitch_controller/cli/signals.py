"""SIGTERM ends a command as Ctrl-C does: with what it started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

_EXIT_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Leave the block by an exception when the process is asked to end, so that it can tidy up."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(_EXIT_TERMINATED)
