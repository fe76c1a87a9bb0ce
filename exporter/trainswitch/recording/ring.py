"""StepRing: a single-writer, single-reader ring of records in shared memory.

The file in ``/dev/shm`` outlives the trainer: it is the black box. Its writer holds a lock on it for as long
as it lives, and so does a sidecar that inherited the writer's descriptor: the kernel lets go of the lock when
the last of them has ended, in whatever way. So the next start can tell an abandoned ring and remove it.
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
from trainswitch.processes import look
from trainswitch.recording.records import LABEL_BYTES, SLOT, SLOT_BYTES, VALUES, Kind, Record, decode

MAGIC = b"TSWRING2"
HEADER_BYTES = 65536
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the place for shared memory on Linux; the name is ours alone
_FIXED = struct.Struct("<8sII")
_CURSOR = struct.Struct("=Q")  # in the byte order of the machine, as a memoryview writes it
_CURSOR_OFFSET = 64
_ENDED_OFFSET = 72  # 1 once the writer has said that nothing follows
_COUNTED_OFFSET = 96  # the reader's: sequence of the last record that a scrape has shown
_META_OFFSET = 128
_NOTHING = (0.0,) * VALUES
_pack_into = SLOT.pack_into
_SUPERSEDED_SECONDS = 3.0
_UNFINISHED_SECONDS = 60.0


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
        # One store of eight aligned bytes: cheaper than packing, and never seen half done.
        self._cursor = memoryview(memory)[_CURSOR_OFFSET : _CURSOR_OFFSET + _CURSOR.size].cast("Q")

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
            _supersede(folder, meta)
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
        self.write(
            kind,
            step,
            values + _NOTHING[len(values) :],
            ((1 << len(values)) - 1 if present is None else present) & 0xFFFF,
            label.encode()[:LABEL_BYTES],
            time.time() if at is None else at,
        )

    def write(
        self, kind: int, step: int, values: tuple[float, ...], present: int, label: bytes, at: float
    ) -> None:
        """Write one record that is in its final form, as `append` makes it: what each step pays for.

        Args:
            kind: a `Kind`.
            step: step number.
            values: exactly `VALUES` numbers.
            present: bit mask, at most 16 bits.
            label: at most `LABEL_BYTES` bytes.
            at: Unix seconds.
        """
        with self._lock:
            sequence = self._sequence + 1
            _pack_into(
                self._memory,
                HEADER_BYTES + (sequence - 1) % self.capacity * SLOT_BYTES,
                sequence,
                kind,
                present,
                len(label),
                step,
                at,
                *values,
                label,
                sequence,
            )
            self._sequence = sequence
            self._cursor[0] = sequence

    def reader(self) -> RingReader:
        """Return a reader of this ring that shares its memory."""
        return RingReader(self._memory, self.meta)

    @property
    def descriptor(self) -> int:
        """File descriptor that holds the lock, for a process that shall hold it too; -1 if private."""
        return self._descriptor

    def end(self) -> None:
        """Tell readers that nothing follows: the run has ended in an orderly way."""
        _CURSOR.pack_into(self._memory, _ENDED_OFFSET, 1)

    def leave(self) -> None:
        """Close this end without removing the file: it is the sidecar's from here on."""
        if self.path is not None and os.getpid() == self._owner:
            os.close(self._descriptor)
            self.path = None

    def close(self) -> None:
        """Remove the file; the memory stays readable for readers in this process."""
        if self.path is not None and os.getpid() == self._owner:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
            self.leave()


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
                return cls._map(handle.fileno(), str(path), mmap.PROT_READ)
        except OSError as error:
            raise RingError(f"cannot read the ring {path}: {error.strerror or error}.") from error

    @classmethod
    def adopt(cls, descriptor: int) -> RingReader:
        """Read the ring behind a descriptor inherited from its writer, as the one reader that counts.

        Raises:
            RingError: it is not a ring.
        """
        return cls._map(descriptor, f"of descriptor {descriptor}", mmap.PROT_READ | mmap.PROT_WRITE)

    @classmethod
    def _map(cls, descriptor: int, path: str, protection: int) -> RingReader:
        try:
            memory = mmap.mmap(descriptor, 0, prot=protection)
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

    @property
    def ended(self) -> bool:
        """Whether the writer has said that nothing follows."""
        (ended,) = _CURSOR.unpack_from(self._memory, _ENDED_OFFSET)
        return bool(ended)

    def drain(self, limit: int | None = None) -> list[Record]:
        """Return the records written since the last call, oldest first, at most `limit`."""
        written = self._written()
        start = max(self._position, written - self.capacity)
        self.dropped += start - self._position
        self._position = written if limit is None else min(written, start + limit)
        records = self._read(start, self._position)
        self.dropped += self._position - start - len(records)
        return records

    def mark_counted(self) -> None:
        """Note in the ring that everything up to here was shown, for the reader after this one."""
        _CURSOR.pack_into(self._memory, _COUNTED_OFFSET, self._position)

    def replay(self) -> list[Record]:
        """Return what is left of the records that an earlier reader marked; `drain` goes on after them."""
        (self._position,) = _CURSOR.unpack_from(self._memory, _COUNTED_OFFSET)
        return self._read(max(0, self._written() - self.capacity), self._position)

    def _written(self) -> int:
        (written,) = _CURSOR.unpack_from(self._memory, _CURSOR_OFFSET)
        return int(written)

    def _read(self, start: int, end: int) -> list[Record]:
        """Return the records after `start` up to `end`, without those that are being overwritten."""
        records = []
        for sequence in range(start + 1, end + 1):
            offset = HEADER_BYTES + (sequence - 1) % self.capacity * SLOT_BYTES
            record = decode(self._memory[offset : offset + SLOT_BYTES], sequence)
            if record is not None:
                records.append(record)
        return records


def remove_abandoned_rings(folder: Path) -> list[Path]:
    """Remove the rings below `folder` whose writers and sidecars are gone, and return their paths.

    They hold a lock on their ring, which the kernel releases when they end in whatever way; so a ring that
    can be locked has neither any more. A ring that a start left unfinished goes, too, after a minute.
    """
    removed = []
    for path in sorted((*folder.glob("trainswitch.*.ring"), *folder.glob("trainswitch.*.new"))):
        try:
            if path.suffix == ".new" and time.time() - path.stat().st_mtime < _UNFINISHED_SECONDS:
                continue  # perhaps it will be locked in an instant
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


def _supersede(folder: Path, meta: dict[str, Any]) -> None:
    """Remove the rings that ended sessions of the same run and rank left to their sidecars.

    A sidecar leaves when its ring is gone. That is waited for, because it holds the port.
    """
    run, rank = meta.get("run"), meta.get("rank")
    for path in folder.glob(f"trainswitch.{run}.{rank}.*.ring"):
        try:
            reader = RingReader.open(path)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except (RingError, OSError):
            continue
        try:
            found = reader.meta
            same = (found.get("run"), found.get("rank")) == (run, rank) and "pid" in found
            if same and (reader.ended or look(found["pid"], found["pid_started"]) == "dead"):
                path.unlink(missing_ok=True)
                _wait_for_lock(descriptor)
        finally:
            os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    deadline = time.monotonic() + _SUPERSEDED_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return


def _file_name(meta: dict[str, Any]) -> str:
    return f"trainswitch.{meta.get('run', 'run')}.{meta.get('rank', 0)}.{os.getpid()}.{time.time_ns()}.ring"


__all__ = ["Kind", "RingReader", "StepRing", "remove_abandoned_rings"]
