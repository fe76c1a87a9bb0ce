"""Has the faults of a plan happen at their moments, and ends each when its time is over."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.chaos.disk import Disk
from benchmarks.chaos.plan import Fault, Trigger
from benchmarks.chaos.processes import Subject


class Mishaps:
    """The faults of one round; `turn` is called often, and does what is due."""

    def __init__(
        self,
        faults: tuple[Fault, ...],
        *,
        subjects: Mapping[str, Subject],
        disk: Disk,
        offsets: Mapping[str, Any],
        run_folder: Path,
        posted_at: Callable[[], float],
    ) -> None:
        self.happened: Counter[str] = Counter()
        """What has gone wrong, by the fault's name."""
        self.clock_step = 0.0
        """Largest step that a clock made, in seconds."""
        self.began = time.monotonic()
        self._waiting = list(faults)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._subjects = subjects
        self._disk = disk
        self._offsets = offsets
        self._files = {name: run_folder / f"{name}.json" for name in ("commands", "status")}
        self._versions = {name: version_of(path) for name, path in self._files.items()}
        self._posted_at = posted_at
        self._folder_since: float | None = None

    def turn(self) -> None:
        """Begin and end what is due."""
        self._look()
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def over(self, chaos_s: float) -> bool:
        """Return whether all has ended; what is not triggered within `chaos_s` seconds does not happen."""
        if time.monotonic() < self.began + chaos_s:
            return False
        self._waiting.clear()
        return not self._due

    def heal(self) -> None:
        """End everything at once."""
        self._waiting.clear()
        self._due.clear()
        self._disk.heal()
        for offset in self._offsets.values():
            offset.value = 0.0
        for subject in self._subjects.values():
            subject.go_on()
            subject.start()

    def _look(self) -> None:
        """Schedule the faults whose trigger has come."""
        now = time.monotonic()
        triggers: dict[Trigger, float | None] = {"begin": self.began, "folder": self._folder_since}
        posted = self._posted_at()
        triggers["posted"] = posted if posted > self.began else None
        for name in ("commands", "status"):
            version = version_of(self._files[name])
            changed = version is not None and version != self._versions[name]
            triggers["commands" if name == "commands" else "status"] = now if changed else None
            self._versions[name] = version
        for fault in tuple(self._waiting):
            since = triggers[fault.trigger]
            if since is not None:
                self._waiting.remove(fault)
                self._at(since + fault.after, lambda fault=fault: self._begin(fault))  # type: ignore[misc]

    def _at(self, moment: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (moment, next(self._order), action))

    def _begin(self, fault: Fault) -> None:
        self.happened[fault.name] += 1
        ends = time.monotonic() + fault.seconds
        if fault.target is None:
            self._folder_since = time.monotonic()
            {"full": self._disk.fill, "read_only": self._disk.protect, "away": self._disk.take_away}[
                fault.kind
            ]()
            self._at(ends, self._disk.heal)
        elif fault.kind == "clock":
            offset = self._offsets[fault.target]
            offset.value += fault.step
            self.clock_step = max(self.clock_step, abs(fault.step))
            self._at(ends, lambda: setattr(offset, "value", 0.0))
        else:
            subject = self._subjects[fault.target]
            begin, end = (
                (subject.kill, subject.start) if fault.kind == "kill" else (subject.stop, subject.go_on)
            )
            begin()
            self._at(ends, end)


def version_of(path: Path) -> int | None:
    """Return what changes when a file is replaced; None where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None
