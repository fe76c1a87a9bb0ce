"""The catalogue of the trainer's metrics as documentation: families, units, and number of series per rank."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from trainswitch.metrics.catalogue import CATALOGUE, COMMON_LABELS, Metric

# The longest prefix decides, so that a new metric finds its family by its name.
_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("run", ("train_run_", "train_process_state", "train_world_size", "train_start_", "train_config_")),
    (
        "progress",
        ("train_step", "train_samples_", "train_tokens_", "train_last_step_timestamp_", "train_epoch"),
    ),
    ("loss", ("train_loss", "train_step_loss_")),
    ("gradients", ("train_grad_norm", "train_step_grad_norm")),
    ("layers", ("train_layer_",)),
    (
        "numerics",
        ("train_nonfinite_", "train_skipped_", "train_guarded", "train_loss_scale", "train_grad_clips_"),
    ),
    ("schedule", ("train_learning_rate",)),
    (
        "time",
        ("train_step_seconds", "train_data_wait_", "train_phase_", "train_model_flops_utilization_"),
    ),
    ("evaluation", ("train_eval",)),
    ("memory", ("train_device_memory_", "train_cuda_")),
    ("GPU", ("train_gpu_",)),
    ("process and host", ("train_process_", "train_host_")),
    ("ranks", ("train_collective", "train_last_collective_", "train_weight_checksum")),
    ("limits", ("train_limit", "train_baseline", "train_phase")),
    ("checkpoints", ("train_checkpoint_",)),
    ("control", ("trainswitch_command", "trainswitch_control_")),
    ("self", ("trainswitch_",)),
)

EXAMPLE = {
    "group": ("parameter groups", 2),
    "layer": ("layers with series of their own", 32),
    "metric": ("evaluation metrics", 2),
    "op": ("collective operations in use", 2),
    "gpu": ("GPUs", 1),
    "xid": ("XID codes seen", 1),
    "signal": ("signals with a limit or a baseline", 3),
    "stat": ("statistics of the baseline", 2),
    "severity": ("severities with a limit", 2),
    "phase": ("phases of training", 3),
    "kind": ("kinds of checkpoints", 2),
}
"""Label whose values only a run knows → what they stand for, and how many the example has."""

_PROPERTIES = {
    "node",
    "framework",
    "sha256",
    "version",
    "python",
    "uuid",
    "name",
    "driver",
    "bound",
    "reason",
}
"""Labels that follow from the others of their series, and so do not multiply."""

_UNITS = (
    ("_timestamp_seconds", "Unix time, s"),
    ("_seconds", "s"),
    ("_bytes", "bytes"),
    ("_ratio", "ratio"),
    ("_sigmas", "sigmas"),
    ("_celsius", "°C"),
    ("_watts", "W"),
    ("_hertz", "Hz"),
    ("_joules", "J"),
)


@dataclasses.dataclass(frozen=True)
class Series:
    """How many series a rank has at most: a factor times the number of values of each label in `per`."""

    fixed: int
    per: tuple[str, ...]

    def __str__(self) -> str:
        factors = [str(self.fixed)] if self.fixed > 1 or not self.per else []
        return " × ".join([*factors, *self.per])

    @property
    def example(self) -> int:
        """How many there are in the example."""
        return self.fixed * math.prod(EXAMPLE[label][1] for label in self.per)


def families() -> dict[str, list[Metric]]:
    """Return family → its metrics, both in the order in which they are documented.

    Raises:
        LookupError: the catalogue has a metric of no known family.
    """
    found: dict[str, list[Metric]] = {name: [] for name, _ in _FAMILIES}
    for metric in CATALOGUE:
        found[_family_of(metric.name)].append(metric)
    return {name: metrics for name, metrics in found.items() if metrics}


def _family_of(name: str) -> str:
    matches = [
        (len(prefix), family)
        for family, prefixes in _FAMILIES
        for prefix in prefixes
        if name.startswith(prefix)
    ]
    if not matches:
        raise LookupError(f"metric {name} belongs to no family: add its prefix to _FAMILIES in {__name__}")
    return max(matches)[1]


def series(metric: Metric) -> Series:
    """Return how many series `metric` has.

    Raises:
        LookupError: it has a label with unknown values of which the example says nothing.
    """
    fixed, per = 1, []
    for label, values in metric.labels:
        if values:
            fixed *= len(values)
        elif label in EXAMPLE:
            per.append(label)
        elif label not in _PROPERTIES:
            raise LookupError(
                f"label {label} of {metric.name} has values that only a run knows: "
                f"add it to EXAMPLE or _PROPERTIES in {__name__}"
            )
    if metric.kind == "histogram":
        # +Inf and _count; with negative bounds there is no _sum
        fixed *= len(metric.buckets) + 2 + (metric.buckets[0] >= 0.0)
    return Series(fixed, tuple(per))


def total(metrics: Iterable[Metric]) -> int:
    """Return how many series `metrics` have in the example."""
    return sum(series(metric).example for metric in metrics)


def unit(metric: Metric) -> str:
    """Return the unit, which the name says; empty for plain numbers."""
    name = metric.name.removesuffix("_total")
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "")


def summary() -> str:
    """Say in one sentence how many series a rank has."""
    example = ", ".join(f"{label} = {count} ({meaning})" for label, (meaning, count) in EXAMPLE.items())
    return (
        f"At most {total(CATALOGUE)} series per rank where {example}; fewer where something is not measured."
    )


def markdown() -> str:
    """Return the whole reference, docs/metrics.md."""
    common = " and ".join(f"`{label}`" for label in COMMON_LABELS)
    lines = [
        "# Metrics",
        "",
        "<!-- Written by `trainswitch metrics --markdown`; do not edit. -->",
        "",
        f"What a rank serves at `/metrics`. Every series carries {common} besides the labels named here.",
        "",
        f"**Cardinality.** {summary()} In the column *series*, a label stands for the number of its values.",
        "",
        "| family | metrics | series in the example |",
        "|---|---|---|",
    ]
    found = families()
    for name, metrics in found.items():
        anchor = name.lower().replace(" ", "-")
        lines.append(f"| [{name}](#{anchor}) | {len(metrics)} | {total(metrics)} |")
    lines.append(f"| all | {len(CATALOGUE)} | {total(CATALOGUE)} |")
    for name, metrics in found.items():
        title = name[0].upper() + name[1:]
        header = ("metric", "type", "unit", "labels", "series", "meaning")
        lines += ["", f"## {title}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
        lines += [f"| {' | '.join(_cells(metric))} |" for metric in metrics]
    return "\n".join(lines) + "\n"


def _cells(metric: Metric) -> list[str]:
    given = "; ".join(
        f"`{label}`: {', '.join(values)}" if values else f"`{label}`" for label, values in metric.labels
    )
    cells = [f"`{metric.name}`", metric.kind, unit(metric), given, str(series(metric)), metric.help]
    return [cell.replace("|", "\\|") for cell in cells]
