"""promtool, and rule files of a test's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trainswitch_controller.rulebook import CompiledRule, compile_file

MakeRule = Callable[..., CompiledRule]


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Return the program; a check that is skipped is no check."""
    found = shutil.which("promtool")
    if found is None:
        pytest.fail(
            "promtool is not on PATH: install it, on Debian and Ubuntu with `apt install prometheus`."
        )
    return Path(found)


@pytest.fixture
def rule(tmp_path: Path) -> MakeRule:
    """Compile one rule."""

    def make(metric: str, condition: str, more: str = "") -> CompiledRule:
        path = tmp_path / "rules.yml"
        quoted = condition.replace("'", "''")
        path.write_text(
            f"rules:\n  - {{metric: '{metric}', condition: '{quoted}'{more}}}\n", encoding="utf-8"
        )
        (compiled,) = compile_file(path)
        return compiled

    return make
