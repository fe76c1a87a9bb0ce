"""A wall clock that the driver can step, for one process: what ``time.time()`` says there."""

from __future__ import annotations

import time
from typing import Protocol

_true_time = time.time


class Offset(Protocol):
    """A number in memory that the driver shares with the process (``multiprocessing.RawValue``)."""

    value: float
    """Seconds that the clock is ahead."""


class _NoOffset:
    value = 0.0


_offset: Offset = _NoOffset()


def install() -> None:
    """Put the clock in the place of ``time.time``; call it before anything keeps a reference to that."""
    time.time = _stepped_time


def follow(offset: Offset) -> None:
    """Have this process's clock be ahead by whatever `offset` holds at the moment."""
    global _offset  # one process has one clock
    _offset = offset


def _stepped_time() -> float:
    return _true_time() + _offset.value
