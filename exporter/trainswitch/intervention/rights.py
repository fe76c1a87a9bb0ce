"""Who could have written a control file: what its folder and its owner say."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainswitch.errors import ControlFileError

NEW_FOLDER_MODE = 0o770
"""Of a run's folder before the umask: the owner's and its group's, nobody else's."""


def check_folder(folder: Path, *, signed: bool) -> None:
    """Return if only this user, root, or a group of this process can write to a run's folder.

    Args:
        folder: of the run.
        signed: whether the files in it carry signatures, so that it does not matter who can write them.

    Raises:
        ControlFileError: others can, or it is a symbolic link. A missing folder is its user's own concern.
    """
    try:
        seen, above = folder.lstat(), folder.parent.stat()
    except OSError:
        return
    if stat.S_ISLNK(seen.st_mode):
        raise _unsafe(f"{folder} is a symbolic link, which may lead anywhere: make it a folder")
    if signed:
        return
    # Whoever can write to the folder above puts another one in this one's place, or makes it before us.
    for path, mode in ((folder.parent, above.st_mode), (folder, seen.st_mode)):
        if mode & stat.S_IWOTH:
            raise _unsafe(
                f"{path} can be written by everybody: run 'chmod o-w {path}', or sign the control files "
                "(signing_key_file)"
            )
    if not _ours(seen) and not _shared(seen):
        raise _unsafe(
            f"{folder} belongs to user {seen.st_uid}, who is neither root nor user {os.geteuid()}, and no "
            "group of this process may write to it: share it with one, or sign the control files "
            "(signing_key_file)"
        )


def check_file(path: Path, seen: os.stat_result) -> None:
    """Return if an open control file is a file of somebody who may write to its folder.

    Raises:
        ControlFileError: it belongs to somebody else, or everybody can write to it.
    """
    if seen.st_mode & stat.S_IWOTH:
        raise _unsafe(f"{path} can be written by everybody: run 'chmod o-w {path}'")
    folder = path.parent.stat()
    if not _ours(seen) and seen.st_uid != folder.st_uid and not _shared(folder):
        raise _unsafe(
            f"{path} belongs to user {seen.st_uid}, who may not write to its folder: remove it, or sign the "
            "control files (signing_key_file)"
        )


def _ours(seen: os.stat_result) -> bool:
    # Root's own processes serve everybody's folders.
    return seen.st_uid in (0, os.geteuid()) or os.geteuid() == 0


def _shared(folder: os.stat_result) -> bool:
    return bool(folder.st_mode & stat.S_IWGRP) and folder.st_gid in (os.getegid(), *os.getgroups())


def _unsafe(sentence: str) -> ControlFileError:
    return ControlFileError("permissions", f"{sentence}.")
