"""A log in parts: the newest is appended to, and the oldest go when all of them take too much space."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

PARTS = 8
"""Into how many parts the allowed space is divided: about one in so many is lost at a time."""


class Parts:
    """Files ``<prefix><number><suffix>`` in one folder; numbers have ten digits and go up.

    Each start begins a new part. Nothing is held open, so that a log survives its folder being moved away,
    and what is appended is written whole or not at all.
    """

    def __init__(self, folder: Path, prefix: str, suffix: str, header: bytes, max_bytes: int) -> None:
        """Name the parts; nothing is written yet.

        Args:
            folder: created when needed.
            prefix: of the file names.
            suffix: of the file names.
            header: what every part begins with.
            max_bytes: what all parts together may take, up to one `append`.
        """
        self._folder = folder
        self._prefix = prefix
        self._suffix = suffix
        self._header = header
        self._max_bytes = max_bytes
        self._part_bytes = max_bytes // PARTS
        self._path: Path | None = None
        self._size = 0

    def append(self, data: bytes) -> None:
        """Write `data` to the newest part.

        Raises:
            OSError: as the operating system says; the part is then as it was.
        """
        if self._path is None or self._size + len(data) > self._part_bytes:
            self._path = self._begin()
        self._size = _write(self._path, data, self._size)

    def paths(self) -> list[Path]:
        """Return the parts that there are, oldest first."""
        return sorted(self._folder.glob(f"{self._prefix}{'[0-9]' * 10}{self._suffix}"))

    def _begin(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        older = self.paths()
        newest = older[-1].name[len(self._prefix) :][:10] if older else "0"
        # Unix time is what TensorBoard expects here; a clock that was set back must not change the order.
        number = max(int(time.time()), int(newest) + 1)
        path = self._folder / f"{self._prefix}{number:010d}{self._suffix}"
        try:
            self._size = _write(path, self._header, 0, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise  # another process's
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._remove_oldest(older)
        return path

    def _remove_oldest(self, older: list[Path]) -> None:
        room = self._max_bytes - self._part_bytes
        for path in reversed(older):
            with contextlib.suppress(FileNotFoundError):  # somebody tidies up, too
                room -= path.stat().st_size
                if room < 0:
                    path.unlink()


def _write(path: Path, data: bytes, size: int, flags: int = 0) -> int:
    """Append `data` to a file of `size` bytes and return its new size; all of it, or nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)
    return size + len(data)
