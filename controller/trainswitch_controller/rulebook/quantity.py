"""Something that a rule can watch, and how such things are made of metrics."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from trainswitch_controller.rulebook.condition import Direction, Reference
from trainswitch_controller.rulebook.sources import Input, Source, gauge, quotient, selector

Kind = Literal["step", "evaluation", "sampled"]
"""``step``: each step has one, and streaks of them are exported; ``evaluation``: each evaluation has one;
``sampled``: what a scrape finds."""
Unit = Literal["ratio", "bytes", "seconds", "watts", "celsius", ""]
"""What a quantity is measured in; empty for a plain number."""

RECENT = "5m"
"""Window of means and percentiles."""
_USUAL = "1h"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantity:
    """Something that a rule can watch."""

    name: str
    kind: Kind
    value: Source
    help: str
    aliases: tuple[str, ...] = ()
    chinese: tuple[str, ...] = ()
    unit: Unit = ""
    signed: bool = False
    """Whether it may be negative."""
    streak: str | None = None
    """Metric of its streaks."""
    streak_labels: tuple[tuple[str, str], ...] = ()
    statistics: dict[str, Source] = dataclasses.field(default_factory=dict)
    """Statistic → what it is over the newest steps or evaluations."""
    references: dict[str, Source] = dataclasses.field(default_factory=dict)
    """What it can be compared with."""
    own_past: tuple[str, ...] = ()
    """References among them that are earlier values of the same series."""
    sigma: tuple[Source, Source] | None = None
    """Centre line and sigma of its control chart."""
    usual: Reference | None = None
    """The reference that it rises or falls from, where none is named."""
    worse: Direction | None = None
    """The direction in which it moves away from its best."""
    nonfinite: str | None = None
    """Selector of the counter of its values that are no numbers."""
    measured_in: dict[str, str] = dataclasses.field(default_factory=dict)
    """Unit → name of the quantity that it is when a limit is given in that unit."""


def baseline(signal: str) -> Source:
    """Return the median of a signal over the warm-up."""
    return gauge("train_baseline", signal=signal, stat="median")


def of_histogram(name: str, **labels: str) -> dict[str, Source]:
    """Return mean and percentiles of a histogram over the last minutes."""
    buckets = selector(f"{name}_bucket", **labels)
    found = {"mean": quotient(f"{name}_sum", f"{name}_count", RECENT, **labels)}
    for percent in ("50", "75", "90", "95", "99"):
        found[f"p{percent}"] = Source(
            f"histogram_quantile(0.{percent}, sum by (run, rank, le) (increase({buckets}[{RECENT}])))", ()
        )
    found["median"] = found["p50"]
    return found


def mean_duration(name: str, metric: str, help_: str, **more: Any) -> Quantity:
    """Return the mean of a histogram of durations, which can be compared with that of the hour before.

    Args:
        name: of the quantity.
        metric: the histogram.
        help_: what it is.
        more: further fields of the quantity.
    """
    statistics = of_histogram(metric)
    past = quotient(f"{metric}_sum", f"{metric}_count", _USUAL, f" offset {RECENT}")
    quantity = Quantity(
        name=name,
        kind="sampled",
        unit="seconds",
        value=statistics["mean"],
        statistics=statistics,
        references={"mean": past},
        own_past=("mean",),
        usual="mean",
        help=help_,
    )
    return dataclasses.replace(quantity, **more)


def counted_rate(name: str, metric: str, help_: str, **more: Any) -> Quantity:
    """Return how fast a counter grows while steps are made, over all ranks; arguments as `mean_duration`."""

    def grown(window: str, offset: str = "") -> str:
        return (
            f"sum by (run) (increase({metric}[{window}]{offset})) / "
            f"(avg by (run) (increase(train_step_seconds_sum[{window}]{offset})) > 0)"
        )

    inputs = (
        Input(metric, (), (0.0, 0.0), (1.0, 0.0)),
        Input("train_step_seconds_sum", (), (0.0, 0.0), (0.0, 1.0)),
    )
    quantity = Quantity(
        name=name,
        kind="sampled",
        value=Source(grown(RECENT), inputs),
        references={"mean": Source(grown(_USUAL, f" offset {RECENT}"), inputs)},
        own_past=("mean",),
        usual="mean",
        help=help_,
    )
    return dataclasses.replace(quantity, **more)


def share(metric: str, upper: str, lower: str, *, free: tuple[str, ...] = (), rest: bool = False) -> Source:
    """Return the share of one kind of a metric in another, or the rest of it."""
    a, b = gauge(metric, free=free, kind=upper), gauge(metric, free=free, kind=lower)
    share = f"{a.expr} / ignoring (kind) {b.expr}"
    labels = tuple((name, "0") for name in free)
    level = (-1e9, 1e9) if rest else (1e9, 0.0)
    return Source(
        f"1 - {share}" if rest else share,
        (
            Input(metric, (("kind", upper), *labels), level),
            Input(metric, (("kind", lower), *labels), (0.0, 1e9)),
        ),
    )
