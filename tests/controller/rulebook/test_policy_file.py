"""Entries put into a policy: the file's comments stay, and the controller accepts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainswitch_controller.errors import PolicyError
from trainswitch_controller.policy import load_policy
from trainswitch_controller.rulebook.policy_file import merged

ROOT = Path(__file__).resolve().parents[3]
ENTRIES: dict[str, dict[str, Any]] = {
    "Mine": {"ladder": [{"action": "reduce_lr", "params": {"factor": 0.25}}], "cooldown": "10m"}
}


def loaded(folder: Path, text: str) -> Any:
    """Return a policy from its text."""
    path = folder / "merged.yml"
    path.write_text(text, encoding="utf-8")
    return load_policy(path)[0]


@pytest.mark.parametrize("name", ["conservative", "autonomous"])
def test_a_committed_policy_gains_entries_and_loses_nothing(tmp_path: Path, name: str) -> None:
    """Every line of it is still there, and so is every entry."""
    base = ROOT / "policies" / f"{name}.yml"
    text = merged(base, ENTRIES, "Compiled.")
    assert text.startswith(base.read_text(encoding="utf-8").rstrip())
    assert "  # Compiled.\n  Mine:\n" in text
    policy, before = loaded(tmp_path, text), load_policy(base)[0]
    assert policy.alerts["Mine"].ladder[0].params == {"factor": 0.25}
    assert policy.alerts["Mine"].cooldown == 600.0
    assert {key: policy.alerts[key] for key in before.alerts} == before.alerts
    assert policy.budget == before.budget


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nalerts: {}\n",
        "version: 1\nalerts: {A: {ladder: [{action: pause}]}}\nmode: observe\n",
        "version: 1\nalerts:\n    A:\n        ladder: [{action: pause}]\n\n# about the mode\nmode: observe\n",
    ],
)
def test_the_alerts_may_stand_anywhere_and_in_any_style(tmp_path: Path, text: str) -> None:
    """An empty mapping, one in braces, one with another indent and something after it."""
    base = tmp_path / "base.yml"
    base.write_text(text, encoding="utf-8")
    policy = loaded(tmp_path, merged(base, ENTRIES, "Compiled."))
    assert set(policy.alerts) == {"Mine", *yaml.safe_load(text)["alerts"]}
    assert policy.mode == yaml.safe_load(text).get("mode", "enforce")


def test_an_entry_that_is_there_already_is_not_replaced(tmp_path: Path) -> None:
    """The ladder that somebody wrote by hand is worth more."""
    base = tmp_path / "base.yml"
    base.write_text("version: 1\nalerts: {Mine: {ladder: [{action: pause}]}}\n", encoding="utf-8")
    with pytest.raises(PolicyError, match="has an entry for 'Mine' already"):
        merged(base, ENTRIES, "Compiled.")
