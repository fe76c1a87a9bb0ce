"""Which format a file has: told from its content, never from its name."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal, get_args

from trainswitch_controller.errors import NotALog
from trainswitch_controller.replay.readers import event_files, parquet
from trainswitch_controller.replay.readers.json_files import is_object
from trainswitch_controller.replay.readers.text import head

Format = Literal["csv", "json-lines", "trainer-state", "tensorboard", "lightning", "wandb"]
FORMATS: tuple[Format, ...] = get_args(Format)

_HEAD_BYTES = 2**20
_WANDB_STEP = "_step"
_LIGHTNING_COLUMNS = {"epoch", "step"}


def detect(path: Path) -> Format:
    """Return the format of a file.

    Raises:
        NotALog: it is empty, or in none of the formats.
        RecordedRunError: it cannot be read.
    """
    start = head(path, _HEAD_BYTES)
    if start.startswith(parquet.SIGNATURE):
        return "wandb"
    if event_files.SIGNATURE in start[:64]:
        return "tensorboard"
    if b"\0" in start:
        raise NotALog(
            f"{path} is no log of a run: it is a binary file, and neither Parquet nor TensorBoard's."
        )
    text = start.decode("utf-8-sig", "replace").lstrip()
    first = text.partition("\n")[0].strip()
    if not first:
        raise NotALog(f"{path} is no log of a run: it is empty.")
    if text.startswith("["):
        return "json-lines"
    if text.startswith("{"):
        if not is_object(first):
            return "trainer-state"
        return "wandb" if f'"{_WANDB_STEP}"' in first else "json-lines"
    return _of_header(first)


def _of_header(first: str) -> Format:
    header = next(csv.reader([first]))
    if _WANDB_STEP in header or any(name.endswith("__MIN") for name in header):
        return "wandb"
    # Lightning's CSVLogger sorts the columns.
    return "lightning" if set(header) >= _LIGHTNING_COLUMNS and header == sorted(header) else "csv"
