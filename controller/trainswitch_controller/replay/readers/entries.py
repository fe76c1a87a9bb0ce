"""From what a log says, entry by entry, to the rows of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainswitch_controller.errors import RecordedRunError
from trainswitch_controller.replay.model import Row
from trainswitch_controller.replay.readers.fields import STEP, choose, require_values

_ABSENT = ("", "none", "null", "n/a", "-")
_MEASURED = ("loss", "grad_norm", "learning_rate", "tokens_per_s", "step_time_s")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What a log says at one place: a line, or a record of a binary file."""

    place: str
    """For people, as in ``line 17``."""
    values: Mapping[str, Any]
    """Name in the log → number, text, or None."""


def rows_of(
    entries: Sequence[Entry], columns: Mapping[str, str], where: str, *, keep_all: bool = False
) -> tuple[Row, ...]:
    """Return the rows that `entries` stand for.

    Args:
        entries: in the log's order.
        columns: field → name in the log, as the user says.
        where: the log, for sentences about what is wrong with it.
        keep_all: one row an entry, whatever it holds. Otherwise entries that hold nothing of a run are left
            out, and what follows each other for one step is put together.

    Raises:
        NotALog: the entries hold no values of a run.
        RecordedRunError: a value is no number.
    """
    names = dict.fromkeys(name for entry in entries for name in entry.values)
    fields = choose(names, columns)
    require_values(fields, names, where)
    rows = [_row(entry, fields, where) for entry in entries]
    return tuple(rows) if keep_all else tuple(_joined(row for row in rows if _says_something(row)))


def _row(entry: Entry, fields: Mapping[str, str], where: str) -> Row:
    values: dict[str, Any] = {}
    evaluations: dict[str, float] = {}
    for field, name in fields.items():
        value = entry.values.get(name)
        if value is None or value == "":  # most of a log's cells: not worth a call
            continue
        try:
            number = _number(value)
            if number is None:
                continue
            if field.startswith("eval_"):
                evaluations[field] = number
            else:
                values[field] = _whole(number) if field == STEP else number
        except ValueError as error:
            raise RecordedRunError(
                f"{where}, {entry.place}: {name} is {str(value)[:60]!r}, which is {error}: correct it, or "
                f"choose another value with --column {field}=NAME."
            ) from None
    return Row(**values, evaluations=evaluations)


def _number(value: Any) -> float | None:
    """Return the number that `value` is or says; None where it says that there is none."""
    if not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            if isinstance(value, str) and value.strip().lower() in _ABSENT:
                return None
    raise ValueError("no number")


def _whole(number: float) -> int:
    if not (math.isfinite(number) and number.is_integer()):
        raise ValueError("no whole number")
    return int(number)


def _says_something(row: Row) -> bool:
    return bool(row.evaluations) or any(getattr(row, field) is not None for field in _MEASURED)


def _joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Put together what follows each other for one step: some loggers write a learning rate on its own."""
    held: Row | None = None
    for row in rows:
        if held is None or not _belong_together(held, row):
            if held is not None:
                yield held
            held = row
        else:
            blank = [field for field in ("epoch", *_MEASURED) if getattr(held, field) is None]
            held = dataclasses.replace(
                held,
                evaluations={**held.evaluations, **row.evaluations},
                **{field: getattr(row, field) for field in blank},
            )
    if held is not None:
        yield held


def _belong_together(first: Row, second: Row) -> bool:
    if first.step is None or first.step != second.step or first.is_step != second.is_step:
        return False
    twice = any(
        getattr(first, field) is not None and getattr(second, field) is not None for field in _MEASURED
    )
    return not twice and not (first.evaluations.keys() & second.evaluations.keys())
