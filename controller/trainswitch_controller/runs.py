"""Reads the control folder: which runs there are, what their trainers say, which numbers were used."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trainswitch.errors import ControlFileError
from trainswitch.intervention.commands import MAX_NUMBER, RUN_NAME
from trainswitch.intervention.control_file import (
    CommandFile,
    StatusFile,
    commands_path,
    read_commands,
    read_status,
    run_folder,
    status_path,
)
from trainswitch.intervention.rights import check_folder
from trainswitch_controller.control_folder import ControlFolder
from trainswitch_controller.errors import ControlFolderError

Content = TypeVar("Content", CommandFile, StatusFile)


def list_runs(control_dir: ControlFolder) -> list[str]:
    """Return the names of all runs that have a folder, sorted.

    Raises:
        ControlFolderError: the control folder is missing or cannot be listed.
    """
    try:
        return sorted(
            entry.name
            for entry in control_dir.path.iterdir()
            if RUN_NAME.fullmatch(entry.name) and entry.is_dir()
        )
    except OSError as error:
        raise ControlFolderError(
            f"the control folder {control_dir} cannot be listed: {error.strerror or error}; create it or "
            "correct the setting control_dir."
        ) from error


def has_folder(control_dir: ControlFolder, run: str) -> bool:
    """Return whether a trainer has made the folder of `run`, whose name is checked."""
    return run_folder(control_dir.path, run).is_dir()


def load_status(control_dir: ControlFolder, run: str) -> StatusFile | None:
    """Return the run's ``status.json``; None where there is none.

    Raises:
        ControlFileError: it cannot be used or believed, or holds numbers that no trainer counts to.
    """
    path = status_path(control_dir.path, run)
    check_folder(path.parent, signed=control_dir.keys is not None)
    status = read_status(path, run, control_dir.keys)
    if status is None:
        return None
    numbers = [status.step, status.epoch, status.applied_seq]
    times = [status.updated_at]
    for outcome in status.results:
        numbers += [outcome.step, outcome.seq]
        times.append(outcome.at)
    for checkpoint in status.checkpoints:
        numbers += [checkpoint.step, checkpoint.size_bytes]
        times.append(checkpoint.created_at)
    _check_numbers(path, numbers, times)
    return status


def load_commands(control_dir: ControlFolder, run: str) -> CommandFile | None:
    """Return the run's ``commands.json``; None where there is none.

    Raises:
        ControlFileError: it cannot be used or believed, or holds numbers that no controller counts to.
    """
    path = commands_path(control_dir.path, run)
    check_folder(path.parent, signed=control_dir.keys is not None)
    content = read_commands(path, run, control_dir.keys)
    if content is not None:
        _check_numbers(path, [content.epoch, *(command.seq for command in content.commands)], [])
    return content


def highest_seq(control_dir: ControlFolder, run: str) -> int:
    """Return the highest sequence number that the run's files have seen; unusable files count as 0."""
    status = _usable(load_status, control_dir, run)
    commands = _usable(load_commands, control_dir, run)
    answered = (status.applied_seq, *(outcome.seq for outcome in status.results)) if status else ()
    written = tuple(command.seq for command in commands.commands) if commands else ()
    return max((0, *answered, *written))


def highest_epoch(control_dir: ControlFolder, run: str) -> int:
    """Return the highest fencing epoch that the run's files have seen; unusable files count as 0."""
    found = (_usable(load_status, control_dir, run), _usable(load_commands, control_dir, run))
    return max(content.epoch if content else 0 for content in found)


def _usable(
    load: Callable[[ControlFolder, str], Content | None], control_dir: ControlFolder, run: str
) -> Content | None:
    """Return what `load` returns, and None where the file cannot be used: the dispatcher reports those."""
    try:
        return load(control_dir, run)
    except ControlFileError:
        return None


def _check_numbers(path: Path, numbers: list[int], times: list[float]) -> None:
    if any(abs(number) > MAX_NUMBER for number in numbers) or not all(map(math.isfinite, times)):
        raise ControlFileError(
            "foreign",
            f"{path} holds a number beyond {MAX_NUMBER} or a time that is not finite: remove the file.",
        )
