"""What one run of the gauntlet is, and the files through which its processes tell of it."""

from __future__ import annotations

import json
import mmap
import struct
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.gauntlet.recipes import Recipe

_COUNT = struct.Struct("q")


class Spec(BaseModel):
    """One run, as its processes are told of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    folder: Path
    """Gets what the run tells of itself."""
    home: Path | None = None
    """The stack's home; None trains without the switch."""
    recipe: Recipe
    steps: int = Field(ge=1)
    seed: int
    pace: float = Field(default=0.0, ge=0.0)
    """Least seconds a step takes, so that the rules, which work in seconds, see a usual run."""
    fault: str | None = None
    leaves_at: dict[int, str] = Field(default_factory=dict)
    """Step → how a healthy run is interrupted after it, to be started again: ``exit`` or ``kill``."""

    @property
    def protected(self) -> bool:
        """Whether the switch watches the run."""
        return self.home is not None


class Diary:
    """What a run's processes tell: events one a line, and a count of all steps that survives a kill."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._events = folder / "events.jsonl"
        self._result = folder / "result.json"
        self._executed = folder / "executed"

    def note(self, kind: str, **facts: Any) -> None:
        """Add an event, with the time."""
        with self._events.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps({"kind": kind, "at": time.time(), **facts}) + "\n")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind, oldest first."""
        try:
            lines = self._events.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines]
        return [event for event in found if event["kind"] == kind]

    def counter(self) -> mmap.mmap:
        """Return the count of executed steps as shared memory; see `count_step`."""
        with self._executed.open("a+b") as handle:  # all ranks may come here at once
            if handle.tell() < _COUNT.size:
                handle.truncate(_COUNT.size)
            return mmap.mmap(handle.fileno(), _COUNT.size)

    @property
    def executed(self) -> int:
        """Optimizer steps that all processes of rank 0 have taken."""
        try:
            count = self._executed.read_bytes()
        except FileNotFoundError:
            return 0
        return int(_COUNT.unpack(count)[0]) if len(count) == _COUNT.size else 0  # it has just been made

    def finish(self, **facts: Any) -> None:
        """Say how the run ended."""
        self._result.write_text(json.dumps(facts), encoding="utf-8")

    @property
    def result(self) -> dict[str, Any] | None:
        """How the run ended; None where it has not."""
        try:
            found: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or not whole yet
            return None
        return found


def count_step(counter: mmap.mmap) -> None:
    """Count one more step."""
    counter[:] = _COUNT.pack(_COUNT.unpack(counter[:])[0] + 1)
