"""One checkpoint's folder: the state, the manifest that vouches for it, and how both are written and read.

step-000000001234/state.pt        what `TrainingState.capture` returned, written by torch.save
step-000000001234/manifest.json   schema, run, step, created_at, kind, size, sha256, version of torch, …

The same holds of a rank's part of a checkpoint, see `rank_parts`.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import IO, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainswitch.errors import CheckpointCorrupt, CheckpointError
from trainswitch.files import write_atomically
from trainswitch.intervention.control_file import CheckpointEntry

CHECKPOINT_SCHEMA: Literal["trainswitch.checkpoint/1"] = "trainswitch.checkpoint/1"
STATE_FILE = "state.pt"
MANIFEST_FILE = "manifest.json"

CHECKPOINT_FOLDER = re.compile(r"step-\d{12,}(\.\d+)?")
"""Names of the folders of whole checkpoints, see `folder_name`."""

Kind = Literal["probation", "stable", "suspect"]

_CHUNK_BYTES = 1 << 20


class RankPart(BaseModel):
    """One rank's part of a checkpoint whose state is spread over the ranks, as rank 0 vouches for it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rank: int = Field(ge=1)
    folder: str
    """Below the run's own folder."""
    size_bytes: int = Field(ge=0)
    sha256: str


class Manifest(BaseModel):
    """``manifest.json``: what its checkpoint is, and how to tell that it is whole."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    schema_: Literal["trainswitch.checkpoint/1"] = Field(default=CHECKPOINT_SCHEMA, alias="schema")
    run: str
    step: int = Field(ge=0)
    created_at: float
    """Unix seconds; later than that of every checkpoint of the run saved before."""
    kind: Kind
    size_bytes: int = Field(ge=0)
    """Of ``state.pt``, as is `sha256`."""
    sha256: str
    torch_version: str
    pinned: bool = False
    nonfinite: str = ""
    """Where the weights or the optimizer's state hold NaN or infinity; empty where they do not."""
    moment: str = ""
    """Names the step boundary, alike on all ranks and never used twice; empty in a run of one rank."""
    parts: tuple[RankPart, ...] = ()
    """Of ranks 1 and up, without which the checkpoint is of no use; empty where rank 0 holds everything."""

    def entry(self, folder: Path) -> CheckpointEntry:
        """Return how ``status.json`` lists the checkpoint in `folder`."""
        return CheckpointEntry(
            step=self.step,
            created_at=self.created_at,
            kind=self.kind,
            size_bytes=self.size_bytes + sum(part.size_bytes for part in self.parts),
            path=str(folder),
            pinned=self.pinned,
        )


def folder_name(step: int, number: int = 1) -> str:
    """Return the name of the folder of a checkpoint of `step`; names sort as their steps do.

    Args:
        step: of the checkpoint.
        number: above 1 where the step is kept more than once.
    """
    return f"step-{step:012d}" + (f".{number}" if number > 1 else "")


def write_state(folder: Path, captured: dict[str, Any]) -> tuple[int, str, str]:
    """Write ``state.pt`` and flush it to disk; return its size in bytes, its sha256 and the version of torch.

    Raises:
        OSError: as the operating system says; what torch.save makes of it would name neither file nor cause.
    """
    import torch

    with (folder / STATE_FILE).open("wb") as handle:
        file = _HashingFile(handle)
        try:
            torch.save(captured, cast("IO[bytes]", file))
        except Exception:
            if file.error is not None:
                raise file.error from None
            raise
        handle.flush()
        os.fsync(handle.fileno())
    return file.size, file.sha256.hexdigest(), str(torch.__version__)


def read_state(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Read ``state.pt`` into host memory, once its size and checksum have been found right.

    Raises:
        CheckpointCorrupt: it is missing, or is not what the manifest describes.
        CheckpointError: ``disk``: it cannot be read; ``state``: this torch cannot load it.
    """
    import torch

    path = folder / STATE_FILE
    try:
        with path.open("rb") as handle:
            _verify(handle, path, manifest)
            handle.seek(0)
            return dict(torch.load(handle, map_location="cpu", weights_only=True))
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointCorrupt(f"{path} is missing") from None
    except OSError as error:
        raise disk_error(f"cannot read {path}", error) from error
    except Exception as error:
        raise CheckpointError(
            "state",
            f"{path} is whole but was written by torch {manifest.torch_version} and cannot be loaded by "
            f"{torch.__version__} ({error}): use the version that wrote it, or another checkpoint.",
        ) from error


def read_manifest(folder: Path, run: str) -> Manifest:
    """Read ``manifest.json`` of a checkpoint of `run`.

    Raises:
        CheckpointError: ``disk``: it cannot be read; ``state``: it is not a manifest, or is another
            checkpoint's.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise disk_error(f"cannot read {path}, so its checkpoint is not used", error) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise CheckpointError(
            "state",
            f"{path} is not a {CHECKPOINT_SCHEMA!r} manifest ({where}: {first['msg']}), so its checkpoint is "
            "not used: remove the folder, or use the version of trainswitch that wrote it.",
        ) from None
    if manifest.run != run or folder_name(manifest.step) != folder.name.partition(".")[0]:
        raise CheckpointError(
            "state",
            f"{path} is of run {manifest.run!r}, step {manifest.step}, so its checkpoint is not used: "
            "move the folder to where it belongs.",
        )
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write or replace ``manifest.json`` atomically.

    Raises:
        OSError: as the operating system says; the old manifest is then unharmed.
    """
    write_atomically(folder / MANIFEST_FILE, manifest.model_dump_json(by_alias=True, indent=1).encode())


def set_aside(folder: Path, why: str) -> Path:
    """Rename `folder` so that it is no checkpoint any more and nothing is lost; return the new path.

    Raises:
        OSError: it cannot be renamed.
    """
    aside, number = folder.with_name(f"{folder.name}.{why}"), 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"{folder.name}.{why}-{number}")
    return folder.rename(aside)


def disk_error(what: str, error: OSError) -> CheckpointError:
    """Return the error for what the file system refused."""
    return CheckpointError(
        "disk",
        f"{what} ({error.strerror or error}): check that the disk is healthy, writable and has space left.",
    )


class _HashingFile:
    """The file that torch.save sees: passes everything on, and knows its size, checksum and first error."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        try:
            written = self._handle.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha256.update(data)
        self.size += written
        return written

    def flush(self) -> None:
        self._handle.flush()


def _verify(handle: IO[bytes], path: Path, manifest: Manifest) -> None:
    size = os.fstat(handle.fileno()).st_size
    if size != manifest.size_bytes:
        raise CheckpointCorrupt(f"{path} has {size} bytes where its manifest says {manifest.size_bytes}")
    sha256 = hashlib.sha256()
    while chunk := handle.read(_CHUNK_BYTES):
        sha256.update(chunk)
    if sha256.hexdigest() != manifest.sha256:
        raise CheckpointCorrupt(f"{path} does not match the sha256 in its manifest")
