"""The metrics that are worked out when somebody looks: once a scrape, not at every step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container
from typing import NamedTuple

from trainswitch.metrics.catalogue import AUTOCORRELATION_STEPS, QUANTILES
from trainswitch.metrics.python_lock import let_others_run
from trainswitch.metrics.registry import MetricRegistry
from trainswitch.metrics.values import Gauge
from trainswitch.statistics.excess import Lasting
from trainswitch.statistics.state import STREAK_SIGNALS, Statistics
from trainswitch.statistics.streaks import STREAK_STEPS
from trainswitch.statistics.throughput import Utilization

_LASTING: dict[str, tuple[bool, Callable[[Statistics], Lasting]]] = {
    "train_loss_excess_sigmas": (False, lambda s: s.excess.lasting),
    "train_loss_rise_ratio": (True, lambda s: s.rise.lasting),
    "train_grad_norm_excess_ratio": (False, lambda s: s.gradients_lasting),
}
"""What most of the last steps reach: metric → whether it holds in warm-up, and where it is."""


_SLOW_SECONDS = 5.0
_SLOW_STEPS = 16
"""Figures of windows of hundreds of steps are worked out anew after so many, or so long a time."""


class _Figure(NamedTuple):
    """Some metrics, and what works them out."""

    metrics: tuple[str, ...]
    show: Callable[[Statistics], None]
    slow: bool = False
    """Whether a few steps more or less hardly change it; these are the dear ones."""


class AtScrape:
    """Brings metrics up to date that nobody needs between two scrapes; for one thread at a time."""

    def __init__(self, metrics: MetricRegistry, utilization: Utilization | None) -> None:
        """Set values in `metrics`; `utilization` is None where the hardware's FLOPs are not known."""
        self._metrics = metrics
        self._utilization = utilization
        self._figures = (
            _Figure(("train_loss_center", "train_loss_sigma"), self._loss_limits),
            _Figure(("train_model_flops_utilization_ratio",), self._utilized),
            _Figure(
                ("train_loss_slope", "train_loss_slope_stderr", "train_loss_window"), self._trend, slow=True
            ),
            _Figure(("train_loss_level",), self._level),
            _Figure(tuple(_LASTING), self._lasting),
            _Figure(("train_loss_autocorrelation",), self._autocorrelation, slow=True),
            _Figure(("train_grad_norm_climb_ratio",), self._climb, slow=True),
            _Figure(("train_grad_norm_quantile",), self._quantiles, slow=True),
            _Figure(tuple(f"train_{signal}_streak" for signal in STREAK_SIGNALS), self._streaks),
        )
        self._gauges: dict[tuple[str, str], list[Gauge]] = {}
        self._slow_due = -math.inf
        self._slow_steps = 0

    def step(self) -> None:
        """Note that the statistics have taken another step."""
        self._slow_steps += 1

    def refresh(self, statistics: Statistics) -> None:
        """Work out what may have changed by much, and give Python's lock away now and then."""
        now = time.monotonic()
        slow = now >= self._slow_due or self._slow_steps >= _SLOW_STEPS
        if slow:
            self._slow_due, self._slow_steps = now + _SLOW_SECONDS, 0
        for figure in self._figures:
            if slow or not figure.slow:
                figure.show(statistics)
                let_others_run()

    def refresh_some(self, statistics: Statistics, wanted: Container[str]) -> None:
        """Work out only what the `wanted` metrics need; for logs, beside which nobody trains."""
        for figure in self._figures:
            if any(name in wanted for name in figure.metrics):
                figure.show(statistics)

    def _set(self, name: str, value: float | None, *labels: str) -> None:
        if value is not None:
            self._metrics.gauge(name, *labels).set(value)

    def _loss_limits(self, statistics: Statistics) -> None:
        center, sigma = statistics.loss_limits() or (None, None)
        self._set("train_loss_center", center)
        self._set("train_loss_sigma", sigma)

    def _utilized(self, _statistics: Statistics) -> None:
        if self._utilization is not None:
            self._set("train_model_flops_utilization_ratio", self._utilization.ratio())

    def _trend(self, statistics: Statistics) -> None:
        trend = statistics.trend.trend()
        if trend is not None:
            self._set("train_loss_slope", trend.slope)
            self._set("train_loss_slope_stderr", trend.slope_stderr)
            self._set("train_loss_window", trend.minimum, "min")
            self._set("train_loss_window", trend.median, "median")
            self._set("train_loss_window", trend.maximum, "max")

    def _lasting(self, statistics: Statistics) -> None:
        for name, (holds_in_warmup, lasting_of) in _LASTING.items():
            lasting = lasting_of(statistics).now
            shown = holds_in_warmup or statistics.baseline.ready
            self._set(name, lasting if lasting is not None and shown else 0.0)

    def _level(self, statistics: Statistics) -> None:
        level = statistics.excess.level()
        if level is not None:
            for stat, value in level._asdict().items():
                self._set("train_loss_level", value, stat)

    def _autocorrelation(self, statistics: Statistics) -> None:
        self._set("train_loss_autocorrelation", statistics.trend.autocorrelation(AUTOCORRELATION_STEPS))

    def _climb(self, statistics: Statistics) -> None:
        self._set("train_grad_norm_climb_ratio", statistics.gradients.climb())

    def _quantiles(self, statistics: Statistics) -> None:
        values = statistics.gradients.quantiles([float(name) for name in QUANTILES])
        for name, value in zip(QUANTILES, values, strict=False):
            self._set("train_grad_norm_quantile", value, name)

    def _streaks(self, statistics: Statistics) -> None:
        for signal, streaks in statistics.streaks.items():
            for side, levels in streaks.levels().items():
                if levels:
                    for gauge, level in zip(self._streak_gauges(signal, side), levels, strict=True):
                        gauge.set(level)

    def _streak_gauges(self, signal: str, side: str) -> list[Gauge]:
        """Return the gauges of all lengths; looking up three dozen of them costs more than setting them."""
        gauges = self._gauges.get((signal, side))
        if gauges is None:
            name = f"train_{signal}_streak"
            gauges = [self._metrics.gauge(name, side, str(steps)) for steps in STREAK_STEPS]
            self._gauges[signal, side] = gauges
        return gauges
