"""A checkpoint made to run code when it is loaded, with a manifest that vouches for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trainswitch.errors import CheckpointError
from trainswitch.intervention.checkpoint_files import Manifest, read_state, write_state


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Have the unpickler call `os.mkdir`."""
        return os.mkdir, (str(self._path),)


def test_loading_runs_no_code(tmp_path: Path) -> None:
    """The checksum is right, whoever wrote it; the state is refused all the same, and nothing has run."""
    size, sha256, torch_version = write_state(tmp_path, {"model": Trap(tmp_path / "sprung")})
    manifest = Manifest(
        run="run-1",
        step=1,
        created_at=1.0,
        kind="stable",
        size_bytes=size,
        sha256=sha256,
        torch_version=torch_version,
    )
    with pytest.raises(CheckpointError, match="cannot be loaded") as refused:
        read_state(tmp_path, manifest)
    assert refused.value.reason == "state"
    assert not (tmp_path / "sprung").exists()
