"""``set_sampling``: how often signals are measured, by command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainswitch.intervention.commands import SetSamplingParams
from trainswitch.intervention.deeds import Deed

Change = Callable[[dict[str, int]], Any]
"""Takes intervals by signal; raises `ConfigError` where one has no effect."""


def sampling_deed(check: Change, change: Change) -> Deed:
    """Return the action that calls `change` with the intervals which `check` has taken."""

    def act(params: SetSamplingParams) -> str:
        change(params.intervals())
        now = ", ".join(f"{signal} every {steps}" for signal, steps in params.intervals().items())
        return f"sampling changed, in steps: {now}."

    def try_it(params: SetSamplingParams) -> None:
        check(params.intervals())

    return Deed(check=try_it, act=act)
