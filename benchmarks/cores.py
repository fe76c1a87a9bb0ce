"""Keeps a benchmark to as many cores as its bar names."""

from __future__ import annotations

import os

from trainswitch.errors import TrainswitchError


class TooFewCores(TrainswitchError):
    """There are fewer cores than a benchmark was asked to use."""


def confine(cores: int) -> None:
    """Keep this process, and all that it starts, to the first `cores` cores that it may use.

    Raises:
        TooFewCores: there are fewer.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if cores > len(allowed):
        raise TooFewCores(f"--cores {cores} is more than the {len(allowed)} that there are: lower it.")
    os.sched_setaffinity(0, allowed[:cores])
