"""The control protocol's two files: ``commands.json`` to the trainer, ``status.json`` from it.

Each file has one writer and is replaced as a whole: temporary file, fsync, rename, fsync of the folder. A
reader therefore sees an old file or a new one, never a half of one; what it cannot use it reports and
ignores. ``docs/control-protocol.md`` describes the format for trainers in other languages.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainswitch.errors import ControlFileError
from trainswitch.files import write_atomically
from trainswitch.intervention.commands import (
    MAX_NUMBER,
    Command,
    CommandOutcome,
    RunState,
    check_run_name,
)
from trainswitch.intervention.rights import check_file
from trainswitch.intervention.signing import SigningKeys

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
    epoch: int = Field(ge=1, le=MAX_NUMBER)
    """Fencing number of the controller that wrote the file; a trainer ignores lower ones than it has seen."""
    commands: tuple[Command, ...] = ()

    @model_validator(mode="after")
    def _one_number_each(self) -> CommandFile:
        if len({command.seq for command in self.commands}) < len(self.commands):
            raise ValueError("two commands have the same seq")
        return self


class CheckpointEntry(BaseModel):
    """One checkpoint that the trainer holds, as ``status.json`` lists it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step: int
    created_at: float
    kind: Literal["probation", "stable", "suspect"]
    """``stable``: survived its probation; ``suspect``: saved while trouble was being dealt with, or with NaN
    or infinity in the weights."""
    size_bytes: int
    """Of all ranks' parts together, where the state is spread over several."""
    path: str
    pinned: bool = False
    """Whether rotation leaves it alone."""


class StatusFile(BaseModel):
    """``status.json``: what the trainer is doing, and what became of the commands it was given."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    schema_: Literal["trainswitch.status/1"] = Field(default=STATUS_SCHEMA, alias="schema")
    run: str
    session: str
    """Changes with every start of the trainer."""
    state: RunState
    actions: tuple[str, ...] = ()
    """What the trainer accepts, its own actions too; older trainers do not say."""
    step: int
    epoch: int = Field(default=0, ge=0, le=MAX_NUMBER)
    """Highest fencing epoch seen."""
    applied_seq: int = Field(default=0, ge=0, le=MAX_NUMBER)
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


def read_commands(path: Path, run: str, keys: SigningKeys | None = None) -> CommandFile | None:
    """Read ``commands.json`` of `run`; None where there is no file.

    Args:
        path: where it is.
        run: whose it must be.
        keys: by one of which it must be signed; None: a signature is not looked at, but the file's owner is.

    Raises:
        ControlFileError: the file is torn, foreign, newer, too large, unreadable, or not to be believed.
    """
    return _read(path, run, CommandFile, COMMANDS_SCHEMA, keys)


def read_status(path: Path, run: str, keys: SigningKeys | None = None) -> StatusFile | None:
    """Read ``status.json`` of `run`; None where there is no file. See `read_commands`.

    Raises:
        ControlFileError: the file is torn, foreign, newer, too large, unreadable, or not to be believed.
    """
    return _read(path, run, StatusFile, STATUS_SCHEMA, keys)


def write_control_file(
    path: Path, content: CommandFile | StatusFile, keys: SigningKeys | None = None
) -> None:
    """Replace `path` by `content` so that a reader, or a power cut, meets the old file or the new one.

    Args:
        path: the file.
        content: what it is to hold.
        keys: the first of which signs it; None: it is not signed.

    Raises:
        ControlFileError: the folder is missing, full, read-only or otherwise not writable; or there is no
            usable key.
    """
    text = content.model_dump_json(by_alias=True, indent=1).encode()
    if keys is not None:
        text = keys.signed(path, text)
    try:
        write_atomically(path, text)
    except OSError as error:
        raise ControlFileError(
            "write",
            f"cannot write {path}: {error.strerror or error}; check that the folder exists, is writable "
            "and has space left.",
        ) from error


def _read(
    path: Path, run: str, model: type[FileModel], schema: str, keys: SigningKeys | None
) -> FileModel | None:
    data = _load(path, believe_owner=keys is None)
    if data is None:
        return None
    document = _object_of(path, data)
    if keys is not None:
        keys.check(path, data, document)
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


def _load(path: Path, *, believe_owner: bool) -> bytes | None:
    try:
        # Neither a link that leads elsewhere nor a pipe that never ends is what a writer leaves behind.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as handle:
            seen = os.fstat(handle.fileno())
            if not stat.S_ISREG(seen.st_mode):
                raise ControlFileError("foreign", f"{path} is not a file: remove it.")
            if believe_owner:
                check_file(path, seen)
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
    return data


def _object_of(path: Path, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise ControlFileError(
            "torn", f"{path} is not complete JSON ({len(data)} bytes): wait for its writer, or remove it."
        ) from None
    if not isinstance(document, dict):
        raise ControlFileError("foreign", f"{path} holds no JSON object: remove the file.")
    return document
