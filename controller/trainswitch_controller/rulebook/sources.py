"""Where a value comes from: a PromQL expression, and the samples that make it have a certain value.

The samples are what the generated cases feed to promtool: an expression and its samples stand together, so
that a case tests the expression that was compiled and not a copy of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

LOOKBACK = "30s"
"""A scrape that fails marks its series as stale; one that is missed must not end an alert."""

EXAMPLE: Mapping[str, str] = {"run": "example", "rank": "0"}
"""Labels of the samples in generated cases."""


@dataclasses.dataclass(frozen=True)
class Input:
    """A series whose samples follow from the value that an expression shall have."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()
    level: tuple[float, float] = (1.0, 0.0)
    """(a, b): the series starts at a · value + b."""
    slope: tuple[float, float] = (0.0, 0.0)
    """(a, b): each second adds a · value + b."""

    @property
    def series(self) -> str:
        """The series in PromQL's notation."""
        labels = ", ".join(f'{name}="{value}"' for name, value in (*EXAMPLE.items(), *self.labels))
        return f"{self.metric}{{{labels}}}"


@dataclasses.dataclass(frozen=True)
class Source:
    """An expression, and what makes it have a certain value."""

    expr: str
    """Instant vector with at least the label ``run``."""
    inputs: tuple[Input, ...]
    selector: str | None = None
    """The one selector that the expression is made of, if it is no more than its last value."""

    def over(self, function: str, seconds: float) -> str:
        """Return `function` over the values of the last `seconds`."""
        window = duration(seconds)
        if self.selector is not None:
            return f"{function}({self.selector}[{window}])"
        return f"{function}(({self.expr})[{window}:10s])"


def duration(seconds: float) -> str:
    """Return seconds in PromQL's notation, in the largest unit that divides them."""
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{round(seconds * 1000)}ms"


def selector(metric: str, /, **labels: str) -> str:
    """Return the selector of a metric, with exact labels."""
    inner = ", ".join(f'{name}="{value}"' for name, value in labels.items())
    return f"{metric}{{{inner}}}" if inner else metric


def gauge(metric: str, /, *, free: tuple[str, ...] = (), **labels: str) -> Source:
    """Return the last value of a gauge or counter.

    Args:
        metric: its name.
        free: labels that are left open; the generated cases give them the value ``0``.
        labels: labels that select.
    """
    chosen = selector(metric, **labels)
    given = (*labels.items(), *((name, "0") for name in free))
    return Source(f"last_over_time({chosen}[{LOOKBACK}])", (Input(metric, given),), chosen)


def quotient(upper: str, lower: str, window: str, offset: str = "", /, **labels: str) -> Source:
    """Return how much `upper` grew for each one that `lower` grew by, over a window: a mean of counters."""

    def grown(metric: str) -> str:
        return f"increase({selector(metric, **labels)}[{window}]{offset})"

    return Source(
        f"sum by (run, rank) ({grown(upper)}) / (sum by (run, rank) ({grown(lower)}) > 0)",
        (
            Input(upper, tuple(labels.items()), (0.0, 0.0), (1.0, 0.0)),
            Input(lower, tuple(labels.items()), (0.0, 0.0), (0.0, 1.0)),
        ),
    )
