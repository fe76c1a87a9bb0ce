"""JSON lines, JSON arrays, and Hugging Face's ``trainer_state.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.readers.entries import Entry
from trainswitch_controller.replay.readers.text import text_of

LOG_HISTORY = "log_history"
"""The key of ``trainer_state.json`` that holds the log.

Source: https://huggingface.co/docs/transformers/main_classes/callback#transformers.TrainerState
"""

_MAX_DEPTH = 4


def read_records(path: Path) -> list[Entry]:
    """Return the objects of a file of JSON lines, or of one JSON array; nested names are ``train/loss``.

    Raises:
        NotALog: it holds no object.
        RecordedRunError: it cannot be read, or something in it is no JSON object.
    """
    text = text_of(path)
    if text.lstrip().startswith("["):
        found = _parsed(text, path, "line {}")
        entries = [_entry(value, f"object {number}", path) for number, value in enumerate(found, 1)]
    else:
        entries = [
            _entry(_parsed(line, path, f"line {number}"), f"line {number}", path)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    if not entries:
        raise NotALog(f"{path} is no log of a run: it is empty.")
    return entries


def read_trainer_state(path: Path) -> tuple[list[Entry], dict[str, Any]]:
    """Return the entries of ``log_history``, and what else the file says of the run.

    Raises:
        NotALog: there is no ``log_history``, or nothing in it.
        RecordedRunError: the file cannot be read, or is not JSON.
    """
    document = _parsed(text_of(path), path, "line {}")
    history = document.get(LOG_HISTORY) if isinstance(document, dict) else None
    if not isinstance(history, list) or not history:
        raise NotALog(f"{path} is no log of a run: it is JSON without a {LOG_HISTORY} that holds entries.")
    entries = [
        _entry(value, f"entry {number} of {LOG_HISTORY}", path) for number, value in enumerate(history, 1)
    ]
    about = {key: value for key, value in document.items() if isinstance(value, (bool, int, float, str))}
    # The last entry sums the training up: its train_loss is a mean over all steps.
    return [entry for entry in entries if "train_runtime" not in entry.values], about


def is_object(line: str) -> bool:
    """Whether a line is a whole JSON object that is no trainer state."""
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and LOG_HISTORY not in found


def _parsed(text: str, path: Path, place: str) -> Any:
    """Return what a JSON text stands for; ``{}`` in `place` is filled with the line of the fault."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = place.format(error.lineno)
        raise RecordedRunError(
            f"{path}, {where}: it is not JSON ({error.msg}, column {error.colno}): correct or remove it."
        ) from None
    except RecursionError:
        raise RecordedRunError(f"{path} is nested too deeply to be a log of a run.") from None


def _entry(value: Any, place: str, path: Path) -> Entry:
    if not isinstance(value, dict):
        raise RecordedRunError(
            f"{path}, {place}: it is {str(value)[:60]!r} and no JSON object: correct it or remove it."
        )
    return Entry(place, dict(_flat(value, "", _MAX_DEPTH)))


def _flat(values: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            if (
                depth > 1 and "_type" not in value
            ):  # which is how Weights & Biases marks histograms and images
                yield from _flat(value, f"{prefix}{key}/", depth - 1)
        elif not isinstance(value, list):
            yield prefix + key, value
