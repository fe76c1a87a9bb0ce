"""Where runs went wrong, as people say it: a CSV file with a line for each trouble."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainswitch_controller.errors import TuneError
from trainswitch_controller.replay.model import RecordedRun

_BEFORE_ROWS, _AFTER_ROWS = 2, 5
"""How far from a trouble an alert may be and still be about it: people mark roughly, and rules look back."""
_COLUMNS = (("from_step", "to_step"), ("from_row", "to_row"))


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """Rows of a run that are not healthy; both ends are among them."""

    run: str
    first: int
    last: int
    what: str = ""

    def is_met_by(self, start: int, end: int, memory: int = 0) -> bool:
        """Whether an alert from row `start` to row `end` is about it.

        Args:
            start: first row.
            end: last row.
            memory: rows that the alert's signal looks back on.
        """
        return start <= self.last + _AFTER_ROWS + memory and end >= self.first - _BEFORE_ROWS


def read_labels(path: Path, runs: Sequence[RecordedRun]) -> dict[str, tuple[Trouble, ...]]:
    """Return run → its troubles; a run with none is known to be healthy.

    The columns are ``run``, ``from_step`` and ``to_step`` (or ``from_row`` and ``to_row``), and ``what``. A
    blank is the begin or the end of the run; a line with two blanks says that the run is healthy.

    Raises:
        TuneError: the file cannot be read, a column is missing, a run or a row does not exist.
    """
    found: dict[str, tuple[Trouble, ...]] = {}
    known = {run.id: run for run in runs}
    lines, ends = _lines(path)
    for place, line in lines:
        name = line["run"]
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the runs are {', '.join(list(known)[:8])}."
            raise TuneError(f"{place}: there is no run {name!r}: {hint}")
        troubles = found.setdefault(name, ())
        if line[ends[0]] or line[ends[1]]:
            rows = _rows(known[name], line, ends, place)
            found[name] = (*troubles, Trouble(name, rows[0], rows[-1], line.get("what", "")))
    return found


def _lines(path: Path) -> tuple[list[tuple[str, Mapping[str, str]]], tuple[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TuneError(f"labels {path} cannot be read: {error}.") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", restkey="")
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    ends = next((pair for pair in _COLUMNS if set(pair) <= set(header)), None)
    if "run" not in header or ends is None:
        raise TuneError(
            f"labels {path} need the columns run, from_step and to_step (or from_row and to_row): the first "
            f"line has {', '.join(header) or 'nothing'}."
        )
    lines: list[tuple[str, Mapping[str, str]]] = []
    for line in reader:
        values = {name: str(value).strip() for name, value in line.items() if name}
        lines.append((f"labels {path}, line {reader.line_num}", values))
    return lines, ends


def _rows(run: RecordedRun, line: Mapping[str, str], ends: tuple[str, str], place: str) -> list[int]:
    """Return the rows of `run` between the two ends of a line."""
    bounds: list[int | None] = []
    for end in ends:
        try:
            bounds.append(int(float(line[end])) if line[end] else None)
        except ValueError:
            raise TuneError(f"{place}: {end} is {line[end]!r}, which is no number: correct it.") from None
    low, high = bounds
    numbers = range(len(run.rows)) if ends[0] == "from_row" else [row.step for row in run.rows]
    rows = [
        row
        for row, number in enumerate(numbers)
        if number is not None and (low is None or number >= low) and (high is None or number <= high)
    ]
    if not rows:
        raise TuneError(
            f"{place}: run {run.id} has no row from {line[ends[0]] or 'its begin'} to "
            f"{line[ends[1]] or 'its end'}: are these {ends[0].removeprefix('from_')}s of its log?"
        )
    return rows
