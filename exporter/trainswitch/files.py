"""Files that other processes read while they are replaced."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path`, flush it, rename it into place, flush the folder.

    Raises:
        OSError: as the operating system says; `path` is then as it was, and the temporary file is gone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        # Exclusively: a link of that name, which others may have put there, is not followed.
        with temporary.open("xb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def signature(path: Path) -> tuple[int, ...] | None:
    """Return what changes whenever the file is replaced; None where there is no file.

    Raises:
        OSError: the operating system does not let it be looked at.
    """
    try:
        seen = path.stat()
    except FileNotFoundError:
        return None
    return seen.st_mtime_ns, seen.st_ino, seen.st_size


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename in it survives a power cut.

    Raises:
        OSError: the folder cannot be opened or flushed.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
