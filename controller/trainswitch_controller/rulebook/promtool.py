"""promtool and amtool: what they say about rule files, test files and routes."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping
from pathlib import Path

from trainswitch_controller.rulebook.document import read

_PATIENCE = 1200.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a file of cases."""

    title: str
    """File, or alert."""
    cases: int
    failures: tuple[str, ...]
    """What promtool said of each that failed."""

    @property
    def holds(self) -> bool:
        """Whether all cases hold."""
        return not self.failures


def check_rules(promtool: Path, path: Path) -> list[str]:
    """Return what is wrong with a rule file, in promtool's words."""
    done = _run(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(path))
    if done.returncode == 0:
        return []
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines()]
    skipped = ("Checking ", "SUCCESS", "FAILED:", "lint error")
    return [line for line in lines if line and not line.startswith(skipped)] or ["promtool refuses it."]


def run_cases(promtool: Path, path: Path, title: str | None = None) -> Verdict:
    """Run a file of cases.

    Raises:
        RuleFileError: it cannot be read.
    """
    tests = read(path).get("tests")
    cases = len(list(tests.entries())) if tests is not None else 0
    done = _run(promtool, "test", "rules", path.name, folder=path.absolute().parent)
    failures: list[str] = []
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}".splitlines()
        lines = [line.rstrip() for line in said if line.strip() and "Unit Testing:" not in line]
        text = "\n".join(line for line in lines if line.strip() not in {"FAILED:", "SUCCESS"})
        failures = [text or f"promtool ended with {done.returncode}."]
    return Verdict(title or str(path), cases, tuple(failures))


def receivers(amtool: Path, configuration: Path, labels: Mapping[str, str]) -> list[str]:
    """Return the receivers to which Alertmanager routes an alert with these labels.

    Raises:
        ValueError: amtool refuses the configuration; its words.
    """
    pairs = [f"{name}={value}" for name, value in labels.items()]
    done = _run(amtool, "config", "routes", "test", f"--config.file={configuration}", *pairs)
    if done.returncode != 0:
        raise ValueError(" ".join((done.stderr or done.stdout).split())[:300])
    return done.stdout.strip().split(",")


def _run(program: Path, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
        cwd=folder,
    )
