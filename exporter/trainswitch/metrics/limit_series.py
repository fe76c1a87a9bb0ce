"""The run's limits as series: those of the phase that its step is in, and no others."""

from __future__ import annotations

from trainswitch.config import MonitorConfig
from trainswitch.limits import Phases, limits_in
from trainswitch.metrics.registry import MetricRegistry


class LimitSeries:
    """Keeps ``train_limit`` and its companions at the phase that the step number is in.

    A limit that is not in force has no ``train_limit``, so rules need not know of phases.
    """

    def __init__(self, config: MonitorConfig, metrics: MetricRegistry, step: int) -> None:
        """Show the limits that are in force at `step`."""
        self._limits = config.limits
        self._phases = Phases(config.phases, config.statistics.total_steps)
        self._metrics = metrics
        self._phase: str | None = None
        self._shown: set[tuple[str, ...]] = set()
        self._show(self._phases.at(step))

    def advance(self, step: int) -> bool:
        """Take the number of the step that the run is at, which may have gone back.

        Returns:
            Whether another phase began.
        """
        phase = self._phases.at(step)
        if phase == self._phase:
            return False
        self._show(phase)
        return True

    def _show(self, phase: str | None) -> None:
        self._phase = phase
        for name in self._phases.names:
            self._metrics.gauge("train_phase", name).set(name == phase)
        in_force = limits_in(phase, self._limits)
        series: set[tuple[str, ...]] = set()
        for limit in in_force:
            series.add(("train_limit", *limit.key))
            self._metrics.gauge("train_limit", *limit.key).set(limit.value)
            if limit.steps is not None:
                series.add(("train_limit_steps", *limit.key))
                self._metrics.gauge("train_limit_steps", *limit.key).set(limit.steps)
        for limit in self._limits:
            labels = (*limit.key, limit.phase or "", limit.reason)
            self._metrics.gauge("train_limit_info", *labels).set(limit in in_force)
        for gone in self._shown - series:
            self._metrics.remove(*gone)
        self._shown = series
