"""TensorBoard event files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.readers.entries import Entry
from trainswitch_controller.replay.readers.fields import STEP

SIGNATURE = b"brain.Event:"
"""Stands near the beginning of every event file: its version."""


def read_events(files: Sequence[Path], where: Path) -> list[Entry]:
    """Return the scalars of one run, an entry for what was written together for one step.

    A file's last record may be torn, as a trainer that was killed leaves it: TensorBoard's loader leaves it
    out.

    Args:
        files: the run's event files, oldest first.
        where: the folder or file, for sentences about it.

    Raises:
        NotALog: there is no scalar in them.
        RecordedRunError: the package tensorboard is not installed, or a file cannot be read.
    """
    entries: list[Entry] = []
    held: dict[str, Any] = {}
    for step, tag, value in _scalars(files):
        if held and (held[STEP] != step or tag in held):
            entries.append(Entry(f"step {held[STEP]}", held))
            held = {}
        held[STEP] = step
        held.setdefault(tag, value)  # the event's own step goes before a tag that is named like it
    if held:
        entries.append(Entry(f"step {held[STEP]}", held))
    if not entries:
        raise NotALog(f"{where} is no log of a run: its event files hold no scalar.")
    return entries


def _scalars(files: Sequence[Path]) -> Iterator[tuple[int, str, float]]:
    """Yield (step, tag, value) in the order in which they were written."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.plugins.scalar.metadata import PLUGIN_NAME
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise RecordedRunError(
            f"{files[0]} is a TensorBoard event file, and the package tensorboard that reads it is not "
            "installed: run pip install 'trainswitch[replay]'."
        ) from error
    for path in files:
        try:
            for event in EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name == PLUGIN_NAME:
                        yield event.step, value.tag, float(make_ndarray(value.tensor).item())
        except OSError as error:
            raise RecordedRunError(f"{path} cannot be read: {error.strerror or error}.") from error
        except ValueError as error:  # protobuf's DecodeError is one
            raise RecordedRunError(f"{path} is damaged ({error}): copy it again, or leave it out.") from None
