"""docs/rules.md says what is there: its conditions are understood, and its table of metrics is complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainswitch_controller.rulebook import compile_file, parse
from trainswitch_controller.rulebook.quantities import QUANTITIES

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
WHOLE = ("comparison", "against what is usual", "change", "change in a time", "no number")
"""Rows of the table of conditions whose entries are conditions by themselves."""


def conditions() -> list[str]:
    """Return the conditions of the table, English and Chinese."""
    found: list[str] = []
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] in WHOLE:
            found += re.findall(r"`([^`]+)`", cells[1])
            found += cells[2].split(", ")
        elif line.startswith("|") and cells[0] == "how long":
            found += [f"> 5 {one}" for one in re.findall(r"`([^`]+)`", cells[1])]
            found += [f"> 5 {one}" for one in cells[2].split(", ")]
    return found


@pytest.mark.parametrize("condition", conditions())
def test_every_condition_of_the_docs_is_understood(condition: str) -> None:
    """Whoever copies one from the table gets no error."""
    parse(condition)


def test_there_are_conditions_in_the_docs() -> None:
    """A table that was renamed would test nothing."""
    assert len(conditions()) > 30


@pytest.mark.parametrize("quantity", QUANTITIES, ids=lambda one: one.name)
def test_every_name_is_in_the_docs(quantity: object) -> None:
    """With all its aliases."""
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{quantity.name}` |"))  # type: ignore[attr-defined]
    for alias in (*quantity.aliases, *quantity.chinese):  # type: ignore[attr-defined]
        assert alias in row


def test_the_example_is_the_one_of_the_docs_and_compiles() -> None:
    """Two rules, as they were asked for."""
    example = ROOT / "examples" / "custom-rules.json"
    assert example.read_text(encoding="utf-8").strip() in TEXT
    assert [one.rule.name for one in compile_file(example)] == [
        "CustomGradNormHigh",
        "CustomValAccuracyDropped",
    ]
