"""Which alerts a limit can make fire, as their own expressions say, and the rules that these need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainswitch_controller.errors import TuneError
from trainswitch_controller.replay.order import may_select, needed_rules
from trainswitch_controller.replay.rule_files import Rule
from trainswitch_controller.tune.levels import Signal

_LIMIT = "train_limit"


def relevant_rules(
    rules: Sequence[Rule], signals: Iterable[Signal]
) -> tuple[list[Rule], dict[Signal, set[str]]]:
    """Return the rules that a replay needs to judge limits, and signal → the alerts that read its limit.

    Alerts that silence these are among the rules, too; all others are left out: the replay is the shorter.

    Raises:
        TuneError: no alert reads the limit of a signal.
    """
    needed = needed_rules(rules)
    alerts: dict[Signal, set[str]] = {}
    for signal in signals:
        alerts[signal] = {
            rule.name for rule in needed if rule.is_alert and _reads_limit(rule, signal, needed)
        }
        if not alerts[signal]:
            raise TuneError(
                f"no alert of these rules reads train_limit{{signal={signal!r}}}, so a limit of it has no "
                "effect: leave that signal out."
            )
    named = set().union(*alerts.values())
    waiting = [rule for rule in needed if rule.is_alert and rule.name in named]
    kept: set[Rule] = set()
    while waiting:
        rule = waiting.pop()
        if rule not in kept:
            kept.add(rule)
            waiting += needed[rule]
    return [rule for rule in rules if rule in kept], alerts


def _reads_limit(alert: Rule, signal: Signal, needed: Mapping[Rule, set[Rule]]) -> bool:
    """Whether an alert reads the limit, itself or by way of records; to be silenced by one is not enough."""
    waiting, seen = [alert], {alert}
    while waiting:
        rule = waiting.pop()
        limits = [selector for selector in rule.reads if selector.name == _LIMIT]
        if any(may_select(selector, {"signal": signal}) for selector in limits):
            return True
        records = {other for other in needed[rule] if not other.is_alert} - seen
        seen |= records
        waiting += records
    return False
