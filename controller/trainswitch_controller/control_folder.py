"""The control folder: where it is, and by which keys the files below it are signed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trainswitch.intervention.signing import SigningKeys


@dataclasses.dataclass(frozen=True)
class ControlFolder:
    """Whatever is handed the folder has its keys, too, and cannot leave them out."""

    path: Path
    keys: SigningKeys | None = None
    """None: the files are not signed, and who owns them is looked at instead."""

    def __str__(self) -> str:
        """Return the path, for sentences."""
        return str(self.path)


def open_control_folder(path: Path, signing_key_file: Path | None) -> ControlFolder:
    """Return the control folder at `path`.

    Raises:
        SecretFileError: the file of keys is not usable.
    """
    return ControlFolder(path, SigningKeys(signing_key_file) if signing_key_file is not None else None)
