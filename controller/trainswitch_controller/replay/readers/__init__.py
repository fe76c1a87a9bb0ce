"""Reads recorded runs from the logs that training tools write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.model import Progress, RecordedRun, Row
from trainswitch_controller.replay.readers.delimited import charts_of, read_table
from trainswitch_controller.replay.readers.detect import FORMATS, Format
from trainswitch_controller.replay.readers.entries import Entry, rows_of
from trainswitch_controller.replay.readers.event_files import read_events
from trainswitch_controller.replay.readers.fields import parse_columns
from trainswitch_controller.replay.readers.json_files import read_records, read_trainer_state
from trainswitch_controller.replay.readers.parquet import SIGNATURE, read_parquet
from trainswitch_controller.replay.readers.sources import Source, find, names_of, unique
from trainswitch_controller.replay.readers.text import head

__all__ = ["FORMATS", "Format", "Recordings", "parse_columns", "read"]


@dataclasses.dataclass(frozen=True, slots=True)
class Recordings:
    """What was read."""

    runs: tuple[RecordedRun, ...]
    """In the order of the paths."""
    left_out: tuple[str, ...]
    """A sentence for each file that was named and is no log of a run, or is part of another."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Log:
    """The entries of one run, before they are rows."""

    entries: Sequence[Entry]
    within: str | None = None
    """Name of the run in a file of several."""
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read(
    paths: Iterable[Path],
    *,
    form: Format | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress = lambda _what, _done, _total: None,
) -> Recordings:
    """Read the runs in files and folders.

    Args:
        paths: files, and folders whose logs are looked for at any depth.
        form: format of all of them; None to detect it.
        columns: field → its name in the log, where it is not a well-known one; see `parse_columns`.
        progress: hears of each file.

    Raises:
        RecordedRunError: a log is damaged, a path does not exist, a column is in none of the logs, or there
            is no run.
    """
    columns = columns or {}
    sources, left_out = find(paths, form)
    unseen = dict(columns)
    found: list[tuple[str, Source, _Log, tuple[Row, ...]]] = []
    names = names_of([source.path for source in sources])
    for number, (name, source) in enumerate(zip(names, sources, strict=True)):
        progress("reading", number, len(sources))
        try:
            for log in _logs(source):
                seen = {name for entry in log.entries for name in entry.values}
                unseen = {field: given for field, given in unseen.items() if given not in seen}
                rows = rows_of(log.entries, columns, str(source.path), keep_all=source.format == "csv")
                found.append((log.within or name, source, log, rows))
        except NotALog as error:
            left_out.append(error)
    progress("reading", len(sources), len(sources))
    if not found:
        more = f" ({len(left_out) - 1} more are none, either)" if len(left_out) > 1 else ""
        raise NotALog(f"{left_out[0]}{more}")
    if unseen:
        field, given = next(iter(unseen.items()))
        raise RecordedRunError(
            f"no log has {given!r}, which --column {field}={given} names: check its spelling."
        )
    runs = (
        RecordedRun(run, source.path, rows, dict(log.about))
        for run, (_, source, log, rows) in zip(unique(name for name, *_ in found), found, strict=True)
    )
    return Recordings(tuple(runs), tuple(str(error) for error in left_out))


def _logs(source: Source) -> list[_Log]:
    path = source.files[0]
    if source.format == "tensorboard":
        return [_Log(read_events(source.files, source.path))]
    if source.format == "trainer-state":
        entries, about = read_trainer_state(path)
        return [_Log(entries, about=about)]
    if source.format == "json-lines":
        return [_Log(read_records(path))]
    if source.format == "wandb":
        return _of_wandb(path)
    return [_Log([entry for file in source.files for entry in read_table(file)])]


def _of_wandb(path: Path) -> list[_Log]:
    """Return what one of the files that Weights & Biases exports holds: it writes three formats."""
    start = head(path, 64).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(SIGNATURE):
        return [_Log(read_parquet(path))]
    if start.startswith((b"{", b"[")):
        return [_Log(read_records(path))]
    entries = read_table(path)
    return [_Log(of_run, run) for run, of_run in charts_of(entries).items()] or [_Log(entries)]
