"""The control protocol's two files: ``commands.json`` to the trainer, ``status.json`` from it.

Each file has one writer and is replaced as a whole: temporary file, fsync, rename, fsync of the folder. A
reader therefore sees an old file or a new one, never a half of one; what it cannot use it reports and
ignores. ``docs/control-protocol.md`` describes the format for trainers in other languages.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainswitch.errors import ControlFileError
from trainswitch.files import write_atomically
from trainswitch.intervention.commands import Command, CommandOutcome, RunState, check_run_name

COMMANDS_SCHEMA: Final = "trainswitch.commands/1"
STATUS_SCHEMA: Final = "trainswitch.status/1"
MAX_CONTROL_FILE_BYTES = 1_000_000
MAX_RESULTS = 200
"""How many results ``status.json`` keeps; the journal has read and stored the older ones long ago."""


class CommandFile(BaseModel):
    """``commands.json``: the commands that wait for an answer, in the order of `seq`."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    schema_: Literal["trainswitch.commands/1"] = Field(default=COMMANDS_SCHEMA, alias="schema")
    run: str
    epoch: int = Field(ge=1)
    """Fencing number of the controller that wrote the file; a trainer ignores lower ones than it has seen."""
    commands: tuple[Command, ...] = ()


class CheckpointEntry(BaseModel):
    """One checkpoint that the trainer holds, as ``status.json`` lists it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int
    created_at: float
    kind: Literal["probation", "stable", "suspect"]
    """``stable``: survived its probation; ``suspect``: saved while trouble was being dealt with."""
    size_bytes: int
    path: str


class StatusFile(BaseModel):
    """``status.json``: what the trainer is doing, and what became of the commands it was given."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    schema_: Literal["trainswitch.status/1"] = Field(default=STATUS_SCHEMA, alias="schema")
    run: str
    session: str
    """Changes with every start of the trainer."""
    state: RunState
    step: int
    epoch: int = 0
    """Highest fencing epoch seen."""
    applied_seq: int = 0
    """Highest `seq` answered; outlives the trainer, so that no command is carried out twice."""
    results: tuple[CommandOutcome, ...] = ()
    """Newest last, at most `MAX_RESULTS`."""
    checkpoints: tuple[CheckpointEntry, ...] = ()
    updated_at: float
    """Unix seconds."""
    pid: int
    node: str


FileModel = TypeVar("FileModel", CommandFile, StatusFile)


def run_folder(control_dir: Path, run: str) -> Path:
    """Return the folder of `run` below `control_dir`; the name is checked, so it cannot lead outside."""
    return control_dir / check_run_name(run)


def commands_path(control_dir: Path, run: str) -> Path:
    """Return the path of the run's ``commands.json``."""
    return run_folder(control_dir, run) / "commands.json"


def status_path(control_dir: Path, run: str) -> Path:
    """Return the path of the run's ``status.json``."""
    return run_folder(control_dir, run) / "status.json"


def read_commands(path: Path, run: str) -> CommandFile | None:
    """Read ``commands.json`` of `run`; None where there is no file.

    Raises:
        ControlFileError: the file is torn, foreign, newer, too large or unreadable.
    """
    return _read(path, run, CommandFile, COMMANDS_SCHEMA)


def read_status(path: Path, run: str) -> StatusFile | None:
    """Read ``status.json`` of `run`; None where there is no file.

    Raises:
        ControlFileError: the file is torn, foreign, newer, too large or unreadable.
    """
    return _read(path, run, StatusFile, STATUS_SCHEMA)


def write_control_file(path: Path, content: CommandFile | StatusFile) -> None:
    """Replace `path` by `content` so that a reader, or a power cut, meets the old file or the new one.

    Raises:
        ControlFileError: the folder is missing, full, read-only or otherwise not writable.
    """
    text = content.model_dump_json(by_alias=True, indent=1)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise ControlFileError(
            "write",
            f"cannot write {path}: {error.strerror or error}; check that the folder exists, is writable "
            "and has space left.",
        ) from error


def _read(path: Path, run: str, model: type[FileModel], schema: str) -> FileModel | None:
    document = _load_object(path)
    if document is None:
        return None
    found = document.get("schema")
    if found != schema:
        name, _, version = str(found)[:80].partition("/")
        if name == schema.partition("/")[0] and version.isdigit():
            raise ControlFileError(
                "newer", f"{path} has schema {found!r} and this trainswitch reads {schema!r}: upgrade it."
            )
        raise ControlFileError(
            "foreign", f"{path} has schema {str(found)[:80]!r} where {schema!r} belongs: remove the file."
        )
    if document.get("run") != run:
        raise ControlFileError(
            "foreign",
            f"{path} is of run {str(document.get('run'))[:130]!r}, not of {run!r}: "
            "give each run its own folder below the control folder.",
        )
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ControlFileError("foreign", f"{path} is not valid at {where!r}: {first['msg']}.") from None


def _load_object(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_CONTROL_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ControlFileError(
            "unreadable", f"cannot read {path}: {error.strerror or error}; check its permissions."
        ) from error
    if len(data) > MAX_CONTROL_FILE_BYTES:
        raise ControlFileError(
            "too_large", f"{path} is larger than {MAX_CONTROL_FILE_BYTES} bytes and was not read: remove it."
        )
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ControlFileError(
            "torn", f"{path} is not complete JSON ({len(data)} bytes): wait for its writer, or remove it."
        ) from None
    if not isinstance(document, dict):
        raise ControlFileError("foreign", f"{path} holds no JSON object: remove the file.")
    return document
