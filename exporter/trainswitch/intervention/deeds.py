"""Deed: an action in two parts, what tries it and what does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Deed:
    """An action that is carried out at once, alike on every rank."""

    check: Callable[[Any], None]
    """Takes the parameters, and raises what keeps this rank from carrying it out; nothing is changed."""
    act: Callable[[Any], str]
    """Takes the parameters, carries it out, and returns one sentence that says what was done."""
