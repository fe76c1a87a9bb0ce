"""Aggregator: drains the ring, feeds the statistics, and keeps the registry up to date.

It knows the run only through the ring's description and records, so the same code runs as a thread of the
trainer and in a process beside it.
"""

from __future__ import annotations

import logging
import math
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

from trainswitch.config import MonitorConfig
from trainswitch.intervention.commands import ENDED_STATES, RUN_STATES
from trainswitch.metrics.catalogue import QUANTILES
from trainswitch.metrics.registry import MetricRegistry
from trainswitch.recording.records import FIRST_LEARNING_RATE, Kind, Record, Value
from trainswitch.recording.ring import RingReader
from trainswitch.statistics.control_chart import ControlChart
from trainswitch.statistics.windows import Baseline, GradientWindow, TrendWindow

logger = logging.getLogger("trainswitch")

DRAIN_INTERVAL_SECONDS = 0.25


class Aggregator:
    """Turns records into samples. All methods may be called from any thread."""

    def __init__(self, reader: RingReader, version: str) -> None:
        """Create the registry of the run that `reader` describes.

        Args:
            reader: of the run's ring; its ``meta`` has run, rank, node, framework, world_size, started_at and
                config (a `MonitorConfig` as a dict).
            version: of trainswitch, for ``trainswitch_build_info``.
        """
        meta = reader.meta
        config = MonitorConfig.model_validate(meta["config"])
        self._reader = reader
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.metrics = MetricRegistry({"run": meta["run"], "rank": str(meta["rank"])})
        self._chart = ControlChart(config.statistics.loss_span_steps, config.statistics.chart_lambda)
        self._gradients = GradientWindow(config.statistics.gradient_window_steps)
        self._trend = TrendWindow(config.statistics.trend_window_steps)
        self._baseline = Baseline(config.statistics.effective_warmup_steps)
        self._handlers: dict[int, Callable[[Record], None]] = {
            Kind.STEP: self._on_step,
            Kind.LEARNING_RATE: lambda r: self._learning_rate(int(r.values[0]), r.values[1]),
            Kind.STATE: lambda r: self._state(r.label),
            Kind.PHASE: lambda r: self._phase(r.label, r.values[0]),
            Kind.EVALUATION: self._on_evaluation,
            Kind.CHECKPOINT: self._on_checkpoint,
            Kind.CHECKPOINT_WRITTEN: lambda r: self._observe("train_checkpoint_seconds", r.values[0]),
            Kind.CHECKPOINT_FAILED: lambda r: self._count("train_checkpoint_failures_total", r.label),
            Kind.COMMAND: self._on_command,
            Kind.CONTROL_ERROR: lambda r: self._count("trainswitch_control_file_errors_total", r.label),
            Kind.CONTROL_READ: lambda r: self._set("trainswitch_control_file_read_timestamp_seconds", r.time),
        }
        self._describe(meta, config, version)

    def _describe(self, meta: dict[str, Any], config: MonitorConfig, version: str) -> None:
        self._set("train_run_info", 1, meta["node"], meta["framework"])
        self._set("train_world_size", meta["world_size"])
        self._set("train_start_timestamp_seconds", meta["started_at"])
        self._set("train_config_info", 1, config.sha256)
        self._set("trainswitch_build_info", 1, version, platform.python_version())
        self._set("train_baseline_ready", float(self._baseline.ready))
        self._state("init")
        for limit in config.limits:
            self._set("train_limit", limit.value, limit.signal, limit.bound, limit.severity)

    def start(self) -> None:
        """Drain the ring from a daemon thread until `close`."""
        self._thread = threading.Thread(target=self._run, name="trainswitch-aggregator", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and take in what is left in the ring."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self.drain()

    def _run(self) -> None:
        while not self._stop.wait(DRAIN_INTERVAL_SECONDS):
            self.drain()

    def drain(self) -> None:
        """Take in all records that are in the ring."""
        with self._lock:
            self._drain()

    def render(self) -> bytes:
        """Return the samples as of now, in Prometheus's text format."""
        with self._lock:
            self._drain()
            start = time.perf_counter()
            self._refresh()
            text = self.metrics.render()
            self._count("trainswitch_overhead_seconds_total", "render", amount=time.perf_counter() - start)
        return text

    def _drain(self) -> None:
        start = time.perf_counter()
        dropped = self._reader.dropped
        for record in self._reader.drain():
            handler = self._handlers.get(record.kind)
            try:
                if handler is None:
                    raise ValueError(f"record of unknown kind {record.kind}")  # noqa: TRY301
                handler(record)
            except Exception:
                # One odd record must not end the monitoring of a run.
                logger.exception("record %r was not taken in", record)
                self._count("trainswitch_records_dropped_total")
        self._count("trainswitch_records_dropped_total", amount=self._reader.dropped - dropped)
        self._count("trainswitch_overhead_seconds_total", "aggregate", amount=time.perf_counter() - start)

    def _on_step(self, record: Record) -> None:
        self._set("train_step", record.step)
        self._count("train_steps_total")
        self._set("train_last_step_timestamp_seconds", record.time)
        loss = record.get(Value.LOSS)
        norm = record.get(Value.GRAD_NORM)
        seconds = record.get(Value.STEP_SECONDS)
        if loss is not None:
            self._on_loss(loss)
        if norm is not None:
            # Mixed precision overflows now and then by design, and skips such a step: that is no trouble.
            self._on_grad_norm(norm, expected=record.label == "loss_scale")
        if seconds is not None:
            self._observe("train_step_seconds", seconds)
            self._phase("train", seconds)
        wait = record.get(Value.DATA_WAIT_SECONDS)
        if wait is not None:
            self._observe("train_data_wait_seconds", wait)
            self._phase("data", wait)
        self._count("train_samples_total", amount=record.get(Value.SAMPLES) or 0.0)
        self._count("train_tokens_total", amount=record.get(Value.TOKENS) or 0.0)
        self._count("train_grad_clips_total", amount=record.get(Value.CLIPPED) or 0.0)
        self._count(
            "trainswitch_overhead_seconds_total", "step", amount=record.get(Value.OVERHEAD_SECONDS) or 0.0
        )
        for name, value in (("train_epoch", Value.EPOCH), ("train_loss_scale", Value.LOSS_SCALE)):
            given = record.get(value)
            if given is not None:
                self._set(name, given)
        if record.label:
            self._count("train_skipped_steps_total", record.label)
        for group in range(int(record.get(Value.LEARNING_RATES) or 0)):
            self._learning_rate(group, record.values[FIRST_LEARNING_RATE + group])
        if self._baseline.update(loss=loss, grad_norm=norm, step_seconds=seconds):
            self._set("train_baseline_ready", 1)
            for signal, (median, iqr) in self._baseline.frozen.items():
                self._set("train_baseline", median, signal, "median")
                self._set("train_baseline", iqr, signal, "iqr")

    def _on_loss(self, loss: float) -> None:
        self._set("train_loss", loss)
        if not math.isfinite(loss):
            self._count("train_nonfinite_total", "loss")
            return
        self._trend.update(loss)
        deviation = self._chart.update(loss)
        if deviation is None:
            return
        self._observe("train_step_loss_deviation_sigmas", deviation.sigmas)
        self._set("train_loss_chart", deviation.chart)
        if deviation.recentered:
            self._count("train_loss_recenters_total")

    def _on_grad_norm(self, norm: float, *, expected: bool) -> None:
        self._set("train_grad_norm", norm)
        self._set("train_grad_norm_squared", norm * norm)
        if not math.isfinite(norm):
            if not expected:
                self._count("train_nonfinite_total", "grad")
            return
        self._observe("train_step_grad_norm", norm)
        ratio = self._gradients.update(norm)
        if ratio is not None:
            self._observe("train_step_grad_norm_ratio", ratio)

    def _on_evaluation(self, record: Record) -> None:
        self._set("train_eval", record.values[0], record.label)
        self._count("train_evals_total", record.label)

    def _on_checkpoint(self, record: Record) -> None:
        self._set("train_checkpoint_step", record.values[0], record.label)
        self._set("train_checkpoint_timestamp_seconds", record.values[1], record.label)

    def _on_command(self, record: Record) -> None:
        action, _, result = record.label.partition("/")
        self._count("trainswitch_commands_total", action, result)
        self._observe("trainswitch_command_delay_seconds", max(0.0, record.values[0]))

    def _state(self, state: str) -> None:
        self.state = state
        for name in RUN_STATES:
            self._set("train_run_state", float(name == state), name)

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in ENDED_STATES

    def _phase(self, phase: str, seconds: float) -> None:
        self._count("train_phase_seconds_total", phase, amount=seconds)

    def _learning_rate(self, group: int, value: float) -> None:
        self._set("train_learning_rate", value, str(group))

    def _refresh(self) -> None:
        """Work out what is only needed when somebody looks."""
        if self._chart.ready:
            self._set("train_loss_center", self._chart.center)
            self._set("train_loss_sigma", self._chart.sigma)
        trend = self._trend.trend()
        if trend is not None:
            self._set("train_loss_slope", trend.slope)
            self._set("train_loss_slope_stderr", trend.slope_stderr)
            self._set("train_loss_window", trend.minimum, "min")
            self._set("train_loss_window", trend.median, "median")
            self._set("train_loss_window", trend.maximum, "max")
        values = self._gradients.quantiles([float(name) for name in QUANTILES])
        for name, value in zip(QUANTILES, values, strict=False):
            self._set("train_grad_norm_quantile", value, name)

    def _set(self, name: str, value: float, *labels: str) -> None:
        self.metrics.gauge(name, *labels).set(value)

    def _count(self, name: str, *labels: str, amount: float = 1.0) -> None:
        # A NaN would poison the counter for ever, and a negative amount is a mistake of the loop's.
        if amount > 0.0 and math.isfinite(amount):
            self.metrics.counter(name, *labels).inc(amount)

    def _observe(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self.metrics.histogram(name).observe(value)
