"""StepRing: a single-writer, single-reader ring of records in shared memory.

The file in ``/dev/shm`` outlives the trainer: it is the black box. Its writer holds a lock on it for as long
as it lives, so that the next start can tell an abandoned ring from a live one and remove it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any

from trainswitch.errors import RingError
from trainswitch.recording.records import LABEL_BYTES, SLOT, SLOT_BYTES, VALUES, Kind, Record, decode

MAGIC = b"TSWRING1"
HEADER_BYTES = 65536
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place for shared memory on Linux; the name is ours alone
_FIXED = struct.Struct("<8sII")
_CURSOR = struct.Struct("<Q")
_CURSOR_OFFSET = 64
_META_OFFSET = 128
_NOTHING = (0.0,) * VALUES


class StepRing:
    """The writer's end. Threads of one process may share it."""

    def __init__(self, memory: mmap.mmap, meta: dict[str, Any], capacity: int) -> None:
        """Begin an empty ring in `memory`; use `create` or `private`."""
        self.meta = meta
        self.capacity = capacity
        self.path: Path | None = None
        """The file others can open; None for a private ring."""
        self._memory = memory
        self._descriptor = -1
        self._owner = os.getpid()
        self._sequence = 0
        self._lock = threading.Lock()
        encoded = json.dumps(meta).encode()
        _FIXED.pack_into(memory, 0, MAGIC, SLOT_BYTES, capacity)
        struct.pack_into("<I", memory, _META_OFFSET, len(encoded))
        memory[_META_OFFSET + 4 : _META_OFFSET + 4 + len(encoded)] = encoded

    @classmethod
    def create(cls, meta: dict[str, Any], capacity: int, folder: Path = SHARED_MEMORY) -> StepRing:
        """Create a ring in a file of its own, and remove those whose writers are gone.

        Args:
            meta: what the reader must know beyond the records; JSON, at most `HEADER_BYTES` - 132 bytes.
            capacity: number of slots, `SLOT_BYTES` bytes each.
            folder: where the file goes; memory that processes share.

        Raises:
            RingError: there is no room for it.
        """
        size = HEADER_BYTES + capacity * SLOT_BYTES
        path = folder / _file_name(meta)
        unlocked = path.with_suffix(".new")  # nobody cleans that up before the lock is held
        descriptor = -1
        try:
            remove_abandoned_rings(folder)
            descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Reserve the pages now: on a full tmpfs a later first touch would kill the trainer (SIGBUS).
            os.posix_fallocate(descriptor, 0, size)
            ring = cls(mmap.mmap(descriptor, size), meta, capacity)
            unlocked.rename(path)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                unlocked.unlink()
            raise RingError(
                f"cannot create {path} of {size} bytes: {error.strerror or error}; "
                "free some shared memory or lower ring_records."
            ) from error
        ring.path = path
        ring._descriptor = descriptor
        return ring

    @classmethod
    def private(cls, meta: dict[str, Any], capacity: int) -> StepRing:
        """Create a ring that only this process can read, for machines without room for a shared one."""
        return cls(mmap.mmap(-1, HEADER_BYTES + capacity * SLOT_BYTES), meta, capacity)

    def append(
        self,
        kind: int,
        step: int,
        values: tuple[float, ...] = (),
        *,
        present: int | None = None,
        label: str = "",
        at: float | None = None,
    ) -> None:
        """Write one record; overwrites the oldest when the reader is a whole ring behind.

        Args:
            kind: a `Kind`.
            step: step number.
            values: at most `VALUES` numbers.
            present: bit mask of the values that are there; by default all that are given.
            label: at most `LABEL_BYTES` bytes of UTF-8; the rest is cut off.
            at: Unix seconds; now by default.
        """
        if present is None:
            present = (1 << len(values)) - 1
        encoded = label.encode()[:LABEL_BYTES] if label else b""
        if len(values) != VALUES:
            values = values + _NOTHING[len(values) :]
        when = time.time() if at is None else at
        with self._lock:
            sequence = self._sequence + 1
            SLOT.pack_into(
                self._memory,
                HEADER_BYTES + (sequence - 1) % self.capacity * SLOT_BYTES,
                sequence,
                kind,
                present & 0xFFFF,
                len(encoded),
                step,
                when,
                *values,
                encoded,
                sequence,
            )
            self._sequence = sequence
            _CURSOR.pack_into(self._memory, _CURSOR_OFFSET, sequence)

    def reader(self) -> RingReader:
        """Return a reader of this ring that shares its memory."""
        return RingReader(self._memory, self.meta)

    def close(self) -> None:
        """Remove the file; the memory stays readable for readers in this process."""
        if self.path is not None and os.getpid() == self._owner:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            os.close(self._descriptor)
            self.path = None


class RingReader:
    """The reader's end: yields each record once, in order, and counts the ones it came too late for."""

    def __init__(self, memory: mmap.mmap, meta: dict[str, Any]) -> None:
        self._memory = memory
        _, _, self.capacity = _FIXED.unpack_from(memory, 0)
        self.meta = meta
        self._position = 0
        self.dropped = 0
        """Records that were overwritten before they were read."""

    @classmethod
    def open(cls, path: Path) -> RingReader:
        """Open the ring of another process, alive or dead, for reading.

        Raises:
            RingError: the file is missing or is not a ring.
        """
        try:
            with path.open("rb") as handle:
                memory = mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ)
            magic, slot_bytes, capacity = _FIXED.unpack_from(memory, 0)
            if magic != MAGIC or slot_bytes != SLOT_BYTES:
                raise RingError(f"{path} is not a ring of this version of trainswitch.")
            if len(memory) < HEADER_BYTES + capacity * SLOT_BYTES:
                raise RingError(f"{path} is shorter than its header says: it was cut off.")
            (length,) = struct.unpack_from("<I", memory, _META_OFFSET)
            meta = json.loads(memory[_META_OFFSET + 4 : _META_OFFSET + 4 + length])
        except (OSError, ValueError, struct.error) as error:
            raise RingError(f"cannot read the ring {path}: {error}.") from error
        return cls(memory, meta)

    def drain(self, limit: int | None = None) -> list[Record]:
        """Return the records written since the last call, oldest first, at most `limit`."""
        (written,) = _CURSOR.unpack_from(self._memory, _CURSOR_OFFSET)
        start = max(self._position, written - self.capacity)
        self.dropped += start - self._position
        end = written if limit is None else min(written, start + limit)
        records = []
        for sequence in range(start + 1, end + 1):
            offset = HEADER_BYTES + (sequence - 1) % self.capacity * SLOT_BYTES
            record = decode(self._memory[offset : offset + SLOT_BYTES], sequence)
            if record is None:
                self.dropped += 1
            else:
                records.append(record)
        self._position = end
        return records


def remove_abandoned_rings(folder: Path) -> list[Path]:
    """Remove the rings below `folder` whose writers are gone, and return their paths.

    A writer holds a lock on its ring, which the kernel releases when the process ends in whatever way; so a
    ring that can be locked has no writer any more.
    """
    removed = []
    for path in sorted(folder.glob("trainswitch.*.ring")):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or gone by now
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT, errno.EPERM):
                raise
        finally:
            os.close(descriptor)
    return removed


def _file_name(meta: dict[str, Any]) -> str:
    return f"trainswitch.{meta.get('run', 'run')}.{meta.get('rank', 0)}.{os.getpid()}.{time.time_ns()}.ring"


__all__ = ["Kind", "RingReader", "StepRing", "remove_abandoned_rings"]
