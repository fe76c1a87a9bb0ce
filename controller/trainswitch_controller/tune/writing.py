"""A proposal as a configuration file, with the reason of each limit and the runs that all of them rest on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import yaml

from trainswitch_controller.tune.judging import SEVERITIES, Measure

if TYPE_CHECKING:
    from trainswitch_controller.tune.proposal import Proposal

_REASON_LENGTH = 200
"""As `LimitConfig.reason` allows."""
_LINE = 110


def reason_of(measure: Measure, troubles: int, steps: int, runs: Sequence[str]) -> str:
    """Return why a limit has its value, as an alert will quote it: what it did, and on which runs."""
    alarms = f"{measure.false_alarms} false alarm{'' if measure.false_alarms == 1 else 's'}"
    caught = f", {len(measure.caught)} of {troubles} troubles met" if troubles else ""
    said = f"{alarms}{caught} in {steps} steps of {len(runs)} run{'' if len(runs) == 1 else 's'}: "
    return said + _some(runs, _REASON_LENGTH - len(said))


def yaml_of(proposal: Proposal) -> str:
    """Return the configuration: the settings that were given, with the phases and limits of the proposal."""
    document: dict[str, Any] = proposal.config.model_dump(mode="json", exclude_unset=True)
    document["limits"] = [
        {key: value for key, value in limit.items() if value is not None} for limit in document["limits"]
    ]
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=_LINE)
    return f"{_header(proposal)}\n{body}"


def _header(proposal: Proposal) -> str:
    total, alone = proposal.total, proposal.alone
    measured = []
    for severity in SEVERITIES:
        alarms = (
            f"{severity}: {total[severity].false_alarms} false alarms of {proposal.allowed[severity]} allowed"
        )
        met, before = len(total[severity].caught), len(alone[severity].caught)
        troubles = f", {met} of {len(proposal.troubles)} troubles met ({before} without limits)"
        measured.append(alarms + (troubles if proposal.troubles else ""))
    lines = [
        "Limits proposed by trainswitch tune.",
        f"Measured by replaying this configuration: {'; '.join(measured)}.",
        f"They rest on {proposal.steps} steps of {len(proposal.runs)} runs: {', '.join(proposal.runs)}.",
    ]
    wrap = textwrap.TextWrapper(_LINE, initial_indent="# ", subsequent_indent="#   ")
    return "\n".join(wrapped for line in lines for wrapped in wrap.wrap(line))


def _some(names: Sequence[str], length: int) -> str:
    """Return as many names as fit into so many characters, and how many more there are."""
    for count in range(len(names), 0, -1):
        more = f" and {len(names) - count} more" if count < len(names) else ""
        text = ", ".join(names[:count]) + more
        if len(text) <= length:
            return text
    return f"{names[0][: max(0, length - 1)]}…"
