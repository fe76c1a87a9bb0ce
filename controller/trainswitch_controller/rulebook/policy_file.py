"""Entries put into a policy file, whose comments and order stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from trainswitch_controller.errors import PolicyError
from trainswitch_controller.policy import Policy, load_policy
from trainswitch_controller.rulebook.text import yaml_text


def merged(base: Path, entries: Mapping[str, dict[str, Any]], comment: str) -> str:
    """Return the text of the policy `base` with further alerts, checked as the controller checks it.

    Args:
        base: a valid policy.
        entries: alert → its entry.
        comment: stands above the new entries.

    Raises:
        PolicyError: `base` or the result is no valid policy, or has an entry of that name already.
    """
    policy, _ = load_policy(base)
    for name in entries:
        if name in policy.alerts:
            raise PolicyError(
                f"policy {base} has an entry for {name!r} already: give the rule another 'name'."
            )
    text = base.read_text(encoding="utf-8")
    if entries:
        text = _inserted(text, entries, comment)
    check(text)
    return text


def check(text: str) -> Policy:
    """Return the policy that a text holds.

    Raises:
        PolicyError: it is none.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yml"
        path.write_text(text, encoding="utf-8")
        return load_policy(path)[0]


def _inserted(text: str, entries: Mapping[str, dict[str, Any]], comment: str) -> str:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    alerts = next(value for key, value in root.value if key.value == "alerts")
    if not alerts.value or alerts.flow_style:
        document = yaml.safe_load(text)
        document["alerts"] = {**(document["alerts"] or {}), **entries}
        return yaml_text(document, comment)
    indent = alerts.value[0][0].start_mark.column
    added = yaml_text(dict(entries), comment)
    block = "".join(
        f"{' ' * indent}{line}\n" if line else "\n" for line in ["", *added.rstrip("\n").split("\n")]
    )
    end = alerts.end_mark.index
    head, tail = text[:end], text[end:]
    return f"{head.rstrip()}\n{block}" + (f"\n{tail}" if tail.strip() else "")
