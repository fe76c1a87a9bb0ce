"""CSV: a row a step, and a row of its own for each value of an evaluation."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from trainswitch.recording.records import FIRST_LEARNING_RATE, Kind, Record, Value
from trainswitch.sinks.parts import Parts
from trainswitch.sinks.sink import Derived

COLUMNS = (
    "step",
    "time",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "eval_loss",
    "eval_accuracy",
    "tokens_per_s",
    "step_time_s",
    "data_wait_s",
    "tokens",
    "eval_metric",
    "eval_value",
)
"""Blank means absent; a value that is not finite is ``nan``, ``inf`` or ``-inf``. ``time`` is Unix time in
seconds, ``learning_rate`` that of the first parameter group."""

_WELL_KNOWN = (("eval_loss", ("loss",)), ("eval_accuracy", ("accuracy", "acc")))


class CsvSink:
    """Writes ``steps.<number>.csv``, in the order in which the steps were done: a rollback repeats some.

    Every evaluation metric stands in ``eval_metric`` and ``eval_value``. The first one whose name ends in
    ``loss`` also fills ``eval_loss``, the first that ends in ``accuracy`` or ``acc`` also ``eval_accuracy``.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Write into `folder`, at most about `max_bytes`; nothing is written yet."""
        self._rows = io.StringIO()
        self._writer = csv.DictWriter(self._rows, COLUMNS, lineterminator="\n")
        header = ",".join(COLUMNS).encode() + b"\n"
        self._parts = Parts(folder, "steps.", ".csv", header, max_bytes)
        self._columns: dict[str, str] = {}

    def take(self, record: Record, derived: Derived) -> None:  # noqa: ARG002 - a row is what was measured
        """Take one record into memory."""
        if record.kind == Kind.STEP:
            self._writer.writerow(_step_row(record))
        elif record.kind == Kind.EVALUATION:
            self._writer.writerow(self._evaluation_row(record))

    def _evaluation_row(self, record: Record) -> dict[str, object]:
        name, value = record.label, record.values[0]
        row = {"step": record.step, "time": record.time, "eval_metric": name, "eval_value": value}
        for column, endings in _WELL_KNOWN:
            if name.lower().endswith(endings) and self._columns.setdefault(column, name) == name:
                row[column] = value
        return row

    def flush(self) -> None:
        """Write what was taken.

        Raises:
            OSError: it cannot be written; what was taken is lost.
        """
        rows = self._rows.getvalue().encode()
        self._rows.seek(0)
        self._rows.truncate()
        if rows:
            self._parts.append(rows)

    def close(self) -> None:
        """Write what was taken."""
        self.flush()


def _step_row(record: Record) -> dict[str, object]:
    seconds = record.get(Value.STEP_SECONDS)
    tokens = record.get(Value.TOKENS) or None
    return {
        "step": record.step,
        "time": record.time,
        "epoch": record.get(Value.EPOCH),
        "loss": record.get(Value.LOSS),
        "grad_norm": record.get(Value.GRAD_NORM),
        "learning_rate": record.values[FIRST_LEARNING_RATE] if record.get(Value.LEARNING_RATES) else None,
        "tokens_per_s": tokens / seconds if tokens and seconds else None,
        "step_time_s": seconds,
        "data_wait_s": record.get(Value.DATA_WAIT_SECONDS),
        "tokens": tokens,
    }
