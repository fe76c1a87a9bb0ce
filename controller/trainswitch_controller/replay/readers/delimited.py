"""CSV and tab-separated files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.readers.entries import Entry
from trainswitch_controller.replay.readers.text import text_of

_CHART_COLUMN = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<bound>__MIN|__MAX)?")


def read_table(path: Path) -> list[Entry]:
    """Return a line of the file as an entry each, without the header.

    Raises:
        NotALog: it has no header, or nothing below it.
        RecordedRunError: it cannot be read, a name stands twice in the header, or a line is torn.
    """
    lines = _lines(path)
    place, header = next(lines, ("", []))
    header = [name.strip() for name in header]
    if len(header) < 2:
        raise NotALog(f"{path} is no log of a run: its first line is no header of several columns.")
    twice = next((name for number, name in enumerate(header) if name in header[:number]), None)
    if twice is not None:
        raise RecordedRunError(f"{path}, {place}: the header has column {twice!r} twice: rename one of them.")
    entries = []
    for place, cells in lines:
        if len(cells) != len(header):
            raise RecordedRunError(
                f"{path}, {place}: it has {len(cells)} values where the header has {len(header)} columns: "
                "complete or remove the line."
            )
        entries.append(Entry(place, dict(zip(header, cells, strict=True))))
    if not entries:
        raise NotALog(f"{path} is no log of a run: there is nothing below its header.")
    return entries


def charts_of(entries: list[Entry]) -> dict[str, list[Entry]]:
    """Return run → its entries, if `entries` are the CSV of a Weights & Biases chart, else nothing.

    Such a file has a column of steps, and for each run ``<run> - <metric>`` with ``__MIN`` and ``__MAX``
    beside it.
    """
    axis, *columns = entries[0].values
    matches = [(column, _CHART_COLUMN.fullmatch(column)) for column in columns]
    if not any(match and match["bound"] for _, match in matches):
        return {}
    runs: dict[str, dict[str, str]] = {}
    for column, match in matches:
        if match is not None and match["bound"] is None and not match["metric"].endswith("_step"):
            runs.setdefault(match["run"], {})[column] = match["metric"]
    return {
        run: [
            Entry(
                entry.place,
                {
                    "step": entry.values[axis],
                    **{metric: entry.values[column] for column, metric in metrics.items()},
                },
            )
            for entry in entries
        ]
        for run, metrics in runs.items()
    }


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each line that is not empty, with its place."""
    text = text_of(path)
    first = text.partition("\n")[0]
    delimiter = "\t" if "\t" in first and "," not in first else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells:
                yield f"line {reader.line_num}", cells
    except csv.Error as error:
        raise RecordedRunError(
            f"{path}, line {reader.line_num}: it is not CSV ({error}): correct it."
        ) from None
