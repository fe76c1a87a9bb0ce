"""The last steps of a trainer that died, as a file."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from pathlib import Path
from typing import Any

from trainswitch.files import write_atomically
from trainswitch.intervention.commands import RESULTS
from trainswitch.recording.records import FIRST_LEARNING_RATE, Kind, Record, Value

_RECORDS_A_STEP = 32
"""Beyond so many records a step, on average, the oldest give way."""


class BlackBox:
    """Remembers the newest steps, and what happened between them, and writes them down."""

    def __init__(self, meta: dict[str, Any], folder: Path, *, steps: int, files: int) -> None:
        """Begin empty.

        Args:
            meta: the ring's description of the run.
            folder: where the file goes; created when it is needed.
            steps: how many steps to remember.
            files: how many files of this run and rank to keep, the new one included.
        """
        self._meta = meta
        self._folder = folder
        self._steps = steps
        self._files = files
        self._records: deque[Record] = deque()
        self._held = 0

    def hear(self, record: Record) -> None:
        """Remember a record."""
        if record.kind == Kind.CONTROL_READ:  # several a second, also in a trainer that hangs for hours
            return
        self._records.append(record)
        self._held += record.kind == Kind.STEP
        while self._held > self._steps or len(self._records) > self._steps * _RECORDS_A_STEP:
            self._held -= self._records.popleft().kind == Kind.STEP

    def write(self, state: str, died_at: float) -> Path:
        """Write ``<run>.<rank>.<time>.jsonl``: a line about the run, then a line a record, oldest first.

        Args:
            state: what the run had said last of its state.
            died_at: when its death was noticed; Unix seconds.

        Raises:
            OSError: the file cannot be written.
        """
        about = {name: value for name, value in self._meta.items() if name != "config"}
        lines = [{**about, "died_at": died_at, "last_state": state, "records": len(self._records)}]
        lines.extend(_fields(record) for record in self._records)
        name = f"{self._meta['run']}.{self._meta['rank']}"
        path = self._folder / f"{name}.{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(died_at))}.jsonl"
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        for old in sorted(self._folder.glob(f"{name}.????????T??????Z.jsonl"))[: -self._files]:
            old.unlink(missing_ok=True)
        return path


def _fields(record: Record) -> dict[str, Any]:
    kind = Kind(record.kind).name.lower() if record.kind in set(Kind) else str(record.kind)
    fields: dict[str, Any] = {"time": record.time, "kind": kind, "step": record.step}
    if record.label:
        fields["label"] = record.label
    if record.kind == Kind.STEP:
        for value in Value:
            if value != Value.LEARNING_RATES and record.get(value) is not None:
                fields[value.name.lower()] = _number(record.get(value))
        rates = int(record.get(Value.LEARNING_RATES) or 0)
        found = record.values[FIRST_LEARNING_RATE : FIRST_LEARNING_RATE + rates]
        fields["learning_rates"] = [_number(value) for value in found]
    elif record.kind == Kind.COMMAND:
        fields["result"] = RESULTS[int(record.values[1])]
        fields["values"] = [_number(record.values[0])]
    else:
        fields["values"] = [_number(record.get(index)) for index in range(record.present.bit_length())]
    return fields


def _number(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)  # JSON has no NaN
