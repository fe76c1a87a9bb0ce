"""The control folder on a small file system of its own, and what happens to it.

Where file systems cannot be mounted (no root), the folder can only disappear and return.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_SIZE = "2m"
_PATIENCE_S = 5.0


class Disk:
    """Holds the folder; every fault is ended by `heal`."""

    def __init__(self, mount: Path, *, mounted: bool) -> None:
        self.control = mount / "control"
        self.mounted = mounted
        """Whether it can fill up and turn read-only."""
        self._mount = mount
        self._away = mount / "away"
        self._filler = mount / "filler"
        self._read_only = False
        self.control.mkdir()

    def fill(self) -> None:
        """Leave no byte free."""
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)

    def protect(self) -> None:
        """Allow no writing, also to who has files open here."""
        # A file system with open files cannot be remounted read-only: another mount hides it instead. Nor can
        # that one, if somebody was quick enough to open a file by it.
        deadline = time.monotonic() + _PATIENCE_S
        while not self._read_only:
            _mount("--bind", str(self._mount), str(self._mount))
            try:
                _mount("-o", "remount,bind,ro", str(self._mount))
                self._read_only = True
            except subprocess.CalledProcessError:
                _unmount(self._mount)
                if time.monotonic() > deadline:
                    raise

    def take_away(self) -> None:
        """Let the folder disappear, as a network share does."""
        self.control.rename(self._away)

    def heal(self) -> None:
        """End whatever fault there is; a folder that was away returns as it was, over a new one."""
        if self._read_only:
            _unmount(self._mount)
            self._read_only = False
        self._filler.unlink(missing_ok=True)
        if self._away.exists():
            self._put_back()

    def _put_back(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            interim = self._mount / f"interim-{time.monotonic_ns()}"
            with contextlib.suppress(FileNotFoundError):
                self.control.rename(interim)
            try:
                self._away.rename(self.control)
            except OSError:  # the trainer has just made a new one
                if time.monotonic() > deadline:
                    raise
                continue
            shutil.rmtree(interim, ignore_errors=True)
            return


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """Yield a disk mounted below `folder`; nothing of it is left at the end."""
    mount = folder / "disk"
    mount.mkdir()
    mounted = os.geteuid() == 0 and _can_mount(mount)
    disk = Disk(mount, mounted=mounted)
    try:
        yield disk
    finally:
        disk.heal()
        if mounted:
            _unmount(mount)


def _can_mount(mount: Path) -> bool:
    try:
        _mount("-t", "tmpfs", "-o", f"size={_SIZE},mode=0755", "trainswitch-chaos", str(mount))
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)  # noqa: S607 - root's own


def _unmount(folder: Path) -> None:
    # Whoever still has files open there keeps them; nobody finds new ones.
    subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)  # noqa: S607 - as above
