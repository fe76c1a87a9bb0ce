"""The effect log: what happened to the training itself, written by the training, in no way by trainswitch.

One file for a run, to which every incarnation of its trainer appends records of 32 bytes, each with one
``write``. Whatever was written survives SIGKILL; a record never crosses a page, so none is torn.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_RECORD = struct.Struct("<IIQdq")


class Seen(enum.IntEnum):
    """What a record is about."""

    BEGAN = 1
    """An incarnation makes its first step; value: the step it was restored to, -1 without."""
    MOVED = 2
    """An optimizer step has moved the weight; value: by how much, which is the learning rate in effect."""
    CAPTURED = 3
    """The state was copied for a checkpoint."""
    LOADED = 4
    """The state was replaced by that of a checkpoint; value: the count that it held."""


@dataclasses.dataclass(frozen=True)
class Sight:
    """One record."""

    seen: Seen
    incarnation: int
    """Counts the starts of the run's trainer, from 1."""
    step: int
    """Number of the step that the loop was in."""
    value: float
    pid: int


class Witness:
    """Writes the log; it is also the state object that checkpoints save and load."""

    def __init__(self, path: Path, incarnation: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._incarnation = incarnation
        self._count = 0
        self.step = 0
        """Of the loop; a rollback sets it back."""

    def saw(self, seen: Seen, value: float = 0.0) -> None:
        """Append one record."""
        os.write(self._file, _RECORD.pack(seen, self._incarnation, self.step, value, os.getpid()))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, and say that it was asked for."""
        self._count += 1
        self.saw(Seen.CAPTURED)
        return {"count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint kept, and say so."""
        self._count = state["count"]
        self.saw(Seen.LOADED, float(self._count))


def read_sights(path: Path) -> list[Sight]:
    """Return the records of a run in the order in which they were written; none where there is no file."""
    return list(_sights(path.read_bytes() if path.exists() else b""))


def _sights(data: bytes) -> Iterator[Sight]:
    whole = len(data) - len(data) % _RECORD.size
    for seen, incarnation, step, value, pid in _RECORD.iter_unpack(data[:whole]):
        yield Sight(Seen(seen), incarnation, step, value, pid)
