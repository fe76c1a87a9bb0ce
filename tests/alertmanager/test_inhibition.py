"""What mutes what: a cause its consequences, and never an alert that would have acted."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INHIBITIONS = yaml.safe_load((ROOT / "alertmanager/alertmanager.yml").read_text(encoding="utf-8"))[
    "inhibit_rules"
]
ALERTS: list[dict[str, str]] = [
    {"alertname": rule["alert"], **rule["labels"]}
    for path in sorted((ROOT / "prometheus" / "rules").glob("*.yml"))
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
each_inhibition = pytest.mark.parametrize(
    "rule", INHIBITIONS, ids=lambda rule: str(rule["target_matchers"])[:60]
)


def matches(matchers: list[str], labels: dict[str, str]) -> bool:
    """Say whether labels satisfy all matchers, as Alertmanager reads them."""

    def one(matcher: str) -> bool:
        found = re.fullmatch(r'(\w+)(=~|!~|!=|=)"(.*)"', matcher)
        assert found, matcher
        name, operator, value = found.groups()
        same = re.fullmatch(value, labels.get(name, "")) if "~" in operator else labels.get(name, "") == value
        return bool(same) != operator.startswith("!")

    return all(one(matcher) for matcher in matchers)


def pairs(rule: dict[str, Any]) -> list[tuple[dict[str, str], dict[str, str]]]:
    """Return each (source, target) among the alerts of our rules that an inhibition is about."""
    sources = [alert for alert in ALERTS if matches(rule["source_matchers"], alert)]
    targets = [alert for alert in ALERTS if matches(rule["target_matchers"], alert)]
    same = [label for label in rule.get("equal", []) if label != "run"]  # any run may be that of the other
    return [
        (source, target)
        for source, target in itertools.product(sources, targets)
        if all(source.get(label) == target.get(label) for label in same)
    ]


@each_inhibition
def test_each_inhibition_is_about_alerts_that_exist(rule: dict[str, Any]) -> None:
    """One that matches nothing has no effect, and each name in it is of an alert that mutes or is muted."""
    found = pairs(rule)
    assert found
    for side, key in ((0, "source_matchers"), (1, "target_matchers")):
        named = set(re.findall(r"\bTrain\w+", " ".join(rule[key])))
        assert named <= {pair[side]["alertname"] for pair in found}


@each_inhibition
def test_what_acts_is_muted_only_by_what_acts(rule: dict[str, Any]) -> None:
    """A muted alert does not reach the controller, so its cause must bring an action of its own."""
    for source, target in pairs(rule):
        if target["severity"] == "critical" and "action" in target:
            assert source["severity"] == "critical", (source, target)
            assert "action" in source, (source, target)


@each_inhibition
def test_what_pages_is_muted_only_by_what_pages(rule: dict[str, Any]) -> None:
    """Nobody sleeps on because of a warning."""
    for source, target in pairs(rule):
        if target["severity"] == "critical":
            assert source["severity"] == "critical", (source, target)


def test_no_two_alerts_mute_each_other() -> None:
    """Of two that muted each other, none would be told."""
    edges = {
        (tuple(sorted(source.items())), tuple(sorted(target.items())))
        for rule in INHIBITIONS
        for source, target in pairs(rule)
    }
    assert not {(source, target) for source, target in edges if (target, source) in edges}


def test_runs_mute_only_their_own_alerts() -> None:
    """The trouble of one run says nothing about another; only alerts of no run mute without one."""
    of_no_run = {"TrainControllerDown", "TrainWatchdogMissing"}
    for rule in INHIBITIONS:
        if "run" not in rule.get("equal", []):
            assert {alert["alertname"] for pair in pairs(rule) for alert in pair} <= of_no_run
