"""The control folder's path, which knows by which keys the files below it are signed."""

from __future__ import annotations

from pathlib import Path, PosixPath

from trainswitch.intervention.signing import SigningKeys


class ControlFolder(PosixPath):
    """A path like any other: whatever is handed the folder has its keys, too, and cannot leave them out."""

    keys: SigningKeys | None = None
    """None: the files are not signed, and who owns them is looked at instead."""


def open_control_folder(path: Path, signing_key_file: Path | None) -> ControlFolder:
    """Return the control folder at `path`.

    Raises:
        SecretFileError: the file of keys is not usable.
    """
    folder = ControlFolder(path)
    if signing_key_file is not None:
        folder.keys = SigningKeys(signing_key_file)
    return folder


def keys_of(control_dir: Path) -> SigningKeys | None:
    """Return the keys by which the files below `control_dir` are signed; None where they are not."""
    return control_dir.keys if isinstance(control_dir, ControlFolder) else None
