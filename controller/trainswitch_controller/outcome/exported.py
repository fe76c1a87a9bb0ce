"""Outcomes as metrics."""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Histogram

LOSS_BUCKETS = (0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0)


class Outcomes:
    """What interventions have cost, by action; an action that is not among `actions` counts as `other`."""

    def __init__(self, registry: CollectorRegistry, actions: Collection[str], other: str) -> None:
        self._actions = actions
        self._other = other
        prefix = "trainswitch_controller_recovery_"
        self._gpu_seconds = Counter(
            f"{prefix}gpu_seconds_total",
            "Ranks of the run times the seconds from an applied intervention until its alert had resolved.",
            ["action"],
            registry=registry,
        )
        self._loss_ratio = Histogram(
            f"{prefix}loss_ratio",
            "Loss when the alert had resolved, over what the course before the onset would have reached.",
            ["action"],
            buckets=LOSS_BUCKETS,
            registry=registry,
        )
        for action in actions:
            self._gpu_seconds.labels(action=action)
            self._loss_ratio.labels(action=action)

    def note(self, action: str, gpu_seconds: float | None, loss_ratio: float | None) -> None:
        """Count one outcome; None is what nobody knows."""
        label = action if action in self._actions else self._other
        if gpu_seconds is not None:
            self._gpu_seconds.labels(action=label).inc(gpu_seconds)
        if loss_ratio is not None:
            self._loss_ratio.labels(action=label).observe(loss_ratio)
