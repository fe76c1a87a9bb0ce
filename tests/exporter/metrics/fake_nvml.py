"""The fake libnvidia-ml of fake_nvml.c, and the cards it plays."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_OPTIONS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-std=c11", "-D_POSIX_C_SOURCE=200809L")


def compile_library(folder: Path, *options: str) -> Path:
    """Compile the fake into `folder` under the name by which nvidia-ml-py asks the system for it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.fail("the tests of GPU metrics need a C compiler for their fake libnvidia-ml: install gcc.")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, *_OPTIONS, *options, "-o", str(library), str(_HERE / "fake_nvml.c")]
    subprocess.run(command, check=True)
    return library


def uuid(index: int) -> str:
    """UUID of the card at `index`."""
    return f"GPU-{index:08x}-1b5d-4f2c-9a6e-0123456789ab"


class FakeDriver:
    """What the fake library answers; each change holds from the next call on."""

    def __init__(self, state: Path) -> None:
        """Keep the answers in the file `state`; there is a driver without cards at first."""
        self.state = state
        self._answers = {"driver": "550.54.15", "count": "0"}
        self._events: list[str] = []
        self._write()

    def add(self, capture: str, **changes: object) -> None:
        """Add a card as captured in ``captures/<capture>.json``."""
        index = int(self._answers["count"])
        answers = json.loads((_HERE / "captures" / f"{capture}.json").read_text(encoding="utf-8"))
        answers.pop("_about")
        for key, value in {"uuid": uuid(index), **answers, **changes}.items():
            self._answers[f"{index}.{key}"] = str(value)
        self.set("count", index + 1)

    def set(self, key: str, value: object) -> None:
        """Give the answer `value`, or the error 3 as ``"!3"``, from now on."""
        self._answers[key] = str(value)
        self._write()

    def unset(self, key: str) -> None:
        """Take an answer back."""
        del self._answers[key]
        self._write()

    def report_xid(self, index: int, xid: int) -> None:
        """Let a card report an XID error."""
        self._events.append(f"event {index} {xid}")
        self._write()

    def _write(self) -> None:
        lines = [*(f"{key} {value}" for key, value in self._answers.items()), *self._events]
        temporary = self.state.with_suffix(".new")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(self.state)
