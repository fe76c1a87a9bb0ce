"""Replayed time: when a row happens, is scraped, and is judged by the rules; and back from time to row."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

START_MS = 1_000_000_000_000
"""Unix milliseconds at which every run attaches: any moment will do that lies long enough in the past, since
Prometheus takes no samples from the future."""
LONGEST_S = 8 * 365 * 86400.0
"""Seconds that a replay may last."""
LEAD_S = 5.0
"""Seconds from there to a run's first row, as a trainer's first step takes some."""
TAIL_S = 60.0
"""Seconds after a run's end for which its alerts are still looked at."""
_ROW_PHASE, _SCRAPE_PHASE, _EVALUATION_PHASE = 0.1, 0.4, 0.7
"""Where in a second, or in a shorter scrape interval, they happen: never at once, so that it does not matter
at which end a window is closed (2.x: both, 3.x: the right one)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """Moments at equal distances, in Unix milliseconds."""

    first: int
    step: int

    def at(self, index: int) -> int:
        """Return the moment of an index, which counts from 0."""
        return self.first + index * self.step

    def index(self, moment: float) -> int:
        """Return the index of the grid's moment that is nearest to `moment`."""
        return round((moment - self.first) / self.step)

    def count_until(self, moment: float) -> int:
        """Return how many moments lie at or before `moment`."""
        return max(0, int((moment - self.first) // self.step) + 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Timeline:
    """The times of a replay."""

    pace: float
    """Seconds that a row takes."""
    scrape: float
    """Seconds between two scrapes."""

    @property
    def scrapes(self) -> Grid:
        """When a run is scraped, from when it attaches on."""
        return Grid(self._first_ms(_SCRAPE_PHASE), round(self.scrape * 1000))

    def evaluations(self, interval: float) -> Grid:
        """When a group of rules is evaluated."""
        return Grid(self._first_ms(_EVALUATION_PHASE), round(interval * 1000))

    def due(self, intervals: Iterable[float]) -> Iterator[frozenset[float]]:
        """Yield, scrape by scrape, the intervals of the groups that are evaluated before the next one.

        Args:
            intervals: of all groups.
        """
        grids = {interval: self.evaluations(interval) for interval in intervals}
        coming = {interval: grid.first for interval, grid in grids.items()}
        for index in itertools.count(1):
            end = self.scrapes.at(index)
            found = [interval for interval, moment in coming.items() if moment < end]
            for interval in found:
                grid = grids[interval]
                coming[interval] = grid.at(grid.count_until(end - 1))
            yield frozenset(found)

    def time_of(self, row: int) -> float:
        """Return the Unix seconds at which a row happens."""
        return self._first_ms(_ROW_PHASE) / 1000 + LEAD_S + row * self.pace

    def since_first_row(self, moment_ms: float) -> float:
        """Return the seconds of the replay since row 0."""
        return round(moment_ms / 1000 - self.time_of(0), 3)

    def row_at(self, moment_ms: float, rows: int) -> int:
        """Return the newest of `rows` rows at a moment; the first one before it, the last after the end."""
        return min(max(0, int(self.since_first_row(moment_ms) // self.pace)), rows - 1)

    def end_of(self, rows: int) -> float:
        """Return the Unix seconds at which a run of so many rows says that it has finished."""
        return self.time_of(rows - 1) + self.pace

    def _first_ms(self, phase: float) -> int:
        return START_MS + round(phase * min(self.scrape, 1.0) * 1000)
