"""Rule files of Prometheus, with the place of every rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from trainswitch_controller.errors import RuleFileError
from trainswitch_controller.rulebook.document import Node, Place, read


@dataclasses.dataclass(frozen=True)
class PrometheusRule:
    """One recording or alerting rule as it stands in a file."""

    name: str
    is_alert: bool
    expr: str
    place: Place
    group: str
    group_keys: frozenset[str]
    """What is set for the whole group."""
    interval: str | None
    labels: dict[str, str]
    annotations: dict[str, str]
    wait: str | None = None
    """``for``."""
    keep: str | None = None
    """``keep_firing_for``."""

    @property
    def title(self) -> str:
        """What messages call it."""
        severity = self.labels.get("severity")
        return f"{self.name} ({severity})" if self.is_alert and severity else self.name


def expand(paths: Iterable[Path]) -> list[Path]:
    """Return the files among `paths`, and those that folders among them hold.

    Raises:
        RuleFileError: a path does not exist, or a folder holds no rule file.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                one for one in path.iterdir() if one.suffix in {".yml", ".yaml", ".json"} and one.is_file()
            )
            if not inside:
                raise RuleFileError([f"{path}: holds no .yml, .yaml or .json file."])
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise RuleFileError([f"{path}: does not exist."])
    return found


def read_rule_file(path: Path) -> list[PrometheusRule]:
    """Return the rules of a file.

    Raises:
        RuleFileError: it cannot be read, or is no rule file of Prometheus.
    """
    root = read(path)
    groups = root.get("groups")
    if groups is None or not groups.is_list:
        raise RuleFileError([f"{root.place}: has no list 'groups', and so is no rule file of Prometheus."])
    return [
        _rule(entry, group)
        for group in groups.entries()
        for rules in [group.get("rules")]
        if rules is not None
        for entry in rules.entries()
    ]


def _rule(entry: Node, group: Node) -> PrometheusRule:
    alert, record, expr = entry.get("alert"), entry.get("record"), entry.get("expr")
    named = alert or record
    if named is None or expr is None:
        raise RuleFileError([f"{entry.place}: a rule needs 'expr', and 'alert' or 'record'."])
    return PrometheusRule(
        name=str(named.value),
        is_alert=alert is not None,
        expr=str(expr.value),
        place=named.place,
        group=_text(group.get("name")) or "",
        group_keys=frozenset(str(key.value) for key, _ in group.pairs()),
        interval=_text(group.get("interval")),
        labels=_texts(entry.get("labels")),
        annotations=_texts(entry.get("annotations")),
        wait=_text(entry.get("for")),
        keep=_text(entry.get("keep_firing_for")),
    )


def _text(node: Node | None) -> str | None:
    return None if node is None else str(node.value)


def _texts(node: Node | None) -> dict[str, str]:
    return {} if node is None else {str(key.value): str(value.value) for key, value in node.pairs()}
