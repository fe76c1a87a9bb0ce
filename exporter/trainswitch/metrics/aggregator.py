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
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from trainswitch.config import MonitorConfig
from trainswitch.intervention.commands import ENDED_STATES, RESULTS, RUN_STATES, RunState
from trainswitch.metrics.at_scrape import AtScrape
from trainswitch.metrics.catalogue import EXCESS_LABELS
from trainswitch.metrics.limit_series import LimitSeries
from trainswitch.metrics.python_lock import let_others_run
from trainswitch.metrics.registry import MetricRegistry
from trainswitch.processes import PROCESS_STATES, ProcessState
from trainswitch.recording.records import (
    COLLECTIVES,
    FIRST_LEARNING_RATE,
    LAYER_SIGNALS,
    LAYERS_INLINE,
    MEMORY_KINDS,
    Kind,
    Record,
    Value,
)
from trainswitch.recording.ring import RingReader
from trainswitch.sinks.group import open_sinks
from trainswitch.sinks.sink import Derived
from trainswitch.statistics.state import Statistics
from trainswitch.statistics.throughput import utilization

logger = logging.getLogger("trainswitch")

DRAIN_INTERVAL_SECONDS = 2.0
"""Each waking costs the training thread more than the few records of a second do; a scrape drains, too."""
_HURRY_SECONDS = 0.05
_RING_SHARE = 4
"""It is drained before more than one part in so many of the ring is full, if records come on as before."""
_RECORDS_AT_A_TIME = 4
_MOMENTS_A_DRAIN = 16
_LEARNING_RATE_ACTIONS = ("reduce_lr", "set_lr")
_WAITING_SINCE = "train_collective_waiting_since_timestamp_seconds"
_ALLOCATOR_COUNTERS = ("train_cuda_alloc_retries_total", "train_cuda_ooms_total")
_STANDING_STATES = (*ENDED_STATES, "paused")


class Aggregator:
    """Turns records into samples. All methods may be called from any thread."""

    def __init__(
        self, reader: RingReader, version: str, *, on_record: Callable[[Record], None] | None = None
    ) -> None:
        """Create the registry of the run that `reader` describes.

        Args:
            reader: of the run's ring; its ``meta`` has run, rank, node, framework, world_size, started_at and
                config (a `MonitorConfig` as a dict), step where the run is resumed, and parameters where
                ``train_model_flops_utilization_ratio`` is estimated from their number.
            version: of trainswitch, for ``trainswitch_build_info``.
            on_record: hears each record after it was taken in.
        """
        meta = reader.meta
        config = MonitorConfig.model_validate(meta["config"])
        self._reader = reader
        self._on_record = on_record
        self._replaying = False
        self._outside: RunState | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._drained_at = time.monotonic()
        self._drain_due = self._drained_at + DRAIN_INTERVAL_SECONDS
        self._thread: threading.Thread | None = None
        self.metrics = MetricRegistry({"run": meta["run"], "rank": str(meta["rank"])})
        self._config = config.statistics
        self._statistics = Statistics(config.statistics)
        self._utilization = utilization(config.throughput, meta.get("parameters"))
        self._sinks = open_sinks(
            config.sinks,
            meta["run"],
            meta["rank"],
            on_error=lambda sink: self._count("trainswitch_sink_errors_total", sink),
        )
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
            Kind.ACTION: self._on_action,
            Kind.CONTROL_ERROR: lambda r: self._count("trainswitch_control_file_errors_total", r.label),
            Kind.RESTORED: self._on_restored,
            Kind.CONTROL_READ: lambda r: self._set("trainswitch_control_file_read_timestamp_seconds", r.time),
        }
        self._handlers |= {
            Kind.LAYERS: self._on_layers,
            Kind.CHECKSUM: self._on_checksum,
            Kind.NONFINITE: lambda r: self._count("train_nonfinite_total", r.label),
            Kind.MEMORY: self._on_memory,
            Kind.GUARD: lambda r: self._set("train_guarded", r.values[0]),
            Kind.COLLECTIVE: self._on_collective,
            Kind.COLLECTIVE_WAITING: lambda r: self._set(_WAITING_SINCE, r.values[0], r.label),
        }
        self._allocator_counts: dict[str, float] = {}
        self._at_scrape = AtScrape(self.metrics, self._utilization)
        layers, activations = meta.get("layers", ()), meta.get("activations", ())
        self._layers = dict(zip(LAYER_SIGNALS, (layers, layers, layers, activations), strict=True))
        self._describe(meta, config, version)
        self._limits = LimitSeries(config, self.metrics, meta.get("step", 0))
        self._replay()

    def _describe(self, meta: dict[str, Any], config: MonitorConfig, version: str) -> None:
        self._set("train_run_info", 1, meta["node"], meta["framework"])
        self._set("train_world_size", meta["world_size"])
        for op in COLLECTIVES if meta["world_size"] > 1 else ():
            self._set(_WAITING_SINCE, 0, op)
        self._set("train_start_timestamp_seconds", meta["started_at"])
        self._set("train_config_info", 1, config.sha256)
        if meta["rank"] == 0:
            self._set("train_checkpoint_interval_steps", config.checkpoint.interval_steps)
        self._set("trainswitch_build_info", 1, version, platform.python_version())
        self._set("train_baseline_ready", float(self._statistics.baseline.ready))
        self._state("init")
        expected = config.throughput.baseline_samples_per_second
        if expected is not None:
            self._set("train_baseline", expected, "samples_per_second", "expected")

    def _replay(self) -> None:
        """Learn from what an aggregator before this one counted, without counting it again.

        Its counters are gone, so they begin anew at zero, as Prometheus expects of a restart; the statistics
        and the newest values go on.
        """
        records = self._reader.replay()
        if not records:
            return
        self._replaying = True
        for record in records:
            self._take(record)
        self._replaying = False
        self.metrics.reset_counts()

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
        if self._thread is None or not self._thread.is_alive():  # else a sink's disk does not answer
            self._write_sinks(self._sinks.close)

    def _run(self) -> None:
        while not self._stop.wait(max(0.0, self._drain_due - time.monotonic())):
            if time.monotonic() >= self._drain_due:  # else a scrape has done it meanwhile
                self.drain()
            self._write_sinks(self._sinks.flush)

    def _write_sinks(self, write: Callable[[], None]) -> None:
        start = time.perf_counter()
        write()
        self._count("trainswitch_overhead_seconds_total", "sinks", amount=time.perf_counter() - start)

    def drain(self) -> None:
        """Take in all records that are in the ring."""
        with self._lock:
            self._drain()

    def take(self, records: Iterable[Record], wanted: Container[str]) -> None:
        """Take in records that come from elsewhere than the ring, and bring the `wanted` metrics up to date.

        For logs of runs that are over: no thread and no scrape are served beside it.
        """
        with self._lock:
            for record in records:
                self._take(record)
            self._at_scrape.refresh_some(self._statistics, wanted)

    def render(self) -> bytes:
        """Return the samples as of now, in Prometheus's text format."""
        with self._lock:
            self._drain()
            start = time.thread_time()
            self._at_scrape.refresh(self._statistics)
            text = self.metrics.render()
            self._count("trainswitch_overhead_seconds_total", "render", amount=time.thread_time() - start)
            self._reader.mark_counted()
        return text

    def _plan_drain(self, taken: int) -> None:
        """Let the next drain come before as many steps a second as now overrun the ring."""
        now = time.monotonic()
        passed, self._drained_at = now - self._drained_at, now
        until_full = passed * self._reader.capacity / _RING_SHARE / max(taken, 1)
        self._drain_due = now + min(max(until_full, _HURRY_SECONDS), DRAIN_INTERVAL_SECONDS)

    def _drain(self) -> None:
        """Take in all records that are in the ring."""
        start = time.thread_time()
        dropped = self._reader.dropped
        records = self._reader.drain()
        self._plan_drain(len(records))
        # A bounded number of moments: thousands of steps a second must not find the aggregator asleep.
        at_a_time = max(_RECORDS_AT_A_TIME, len(records) // _MOMENTS_A_DRAIN + 1)
        for number, record in enumerate(records, start=1):
            self._take(record)
            if number % at_a_time == 0:
                let_others_run()
        self._count("trainswitch_records_dropped_total", amount=self._reader.dropped - dropped)
        self._count("trainswitch_overhead_seconds_total", "aggregate", amount=time.thread_time() - start)

    def _take(self, record: Record) -> None:
        handler = self._handlers.get(record.kind)
        try:
            if handler is None:
                raise ValueError(f"record of unknown kind {record.kind}")  # noqa: TRY301
            handler(record)
            if self._on_record is not None:
                self._on_record(record)
            if not self._replaying and self._sinks.wants(record):
                self._sinks.take(record, self._derived())
        except Exception:
            # One odd record must not end the monitoring of a run.
            logger.exception("record %r was not taken in", record)
            self._count("trainswitch_records_dropped_total")

    def statistics_state(self) -> dict[str, Any]:
        """Return the state of the statistics after all records that are in the ring: JSON, of bounded size.

        This and `load_statistics` are all that a checkpoint needs of an aggregator, wherever it runs: in the
        trainer they are called directly, and in a sidecar through `trainswitch.metrics.exchange`.
        """
        with self._lock:
            self._drain()
            return self._statistics.state_dict()

    def load_statistics(self, state: Mapping[str, Any]) -> None:
        """Go on from what `statistics_state` returned, after the records that are in the ring.

        Raises:
            ValueError: it is not such a state, or is another version's; the statistics stay as they are.
        """
        with self._lock:
            self._drain()
            self._statistics = Statistics.from_state(self._config, state)
            self._show_statistics()

    def _on_restored(self, record: Record) -> None:
        self._statistics.rewind(record.step)
        self._advance_limits(record.step)
        self._set("train_step", record.step)

    def _on_step(self, record: Record) -> None:
        if self._statistics.advance(record.step):
            self._count("train_baseline_restarts_total")
            self._show_statistics()
        self._advance_limits(record.step)
        self._set("train_step", record.step)
        self._at_scrape.step()
        self._count("train_steps_total")
        self._set("train_last_step_timestamp_seconds", record.time)
        loss = record.get(Value.LOSS)
        norm = record.get(Value.GRAD_NORM)
        self._statistics.take_streaks(
            record.time,
            record.get(Value.EPOCH),
            loss=loss,
            grad_norm=norm if record.label != "loss_scale" else None,
        )
        seconds = record.get(Value.STEP_SECONDS)
        if loss is not None:
            self._on_loss(record.step, loss)
        if norm is not None:
            # Mixed precision overflows now and then by design, and skips such a step: that is no trouble.
            self._on_grad_norm(norm, expected=record.label == "loss_scale")
        self._on_durations(record, seconds)
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
        self._on_learning_rates(record)
        if self._statistics.baseline.update(loss=loss, grad_norm=norm, step_seconds=seconds):
            self._show_baseline()

    def _on_durations(self, record: Record, seconds: float | None) -> None:
        wait = record.get(Value.DATA_WAIT_SECONDS)
        if seconds is not None:
            self._observe("train_step_seconds", seconds)
            self._phase("train", seconds - (wait or 0.0))
            if self._utilization is not None:
                self._utilization.update(record.get(Value.TOKENS) or 0.0, seconds)
        if wait is not None:
            self._observe("train_data_wait_seconds", wait)
            self._phase("data", wait)

    def _show_statistics(self) -> None:
        """Show what is otherwise only shown when it changes."""
        self._show_baseline()
        for metric in self._statistics.evaluations.metrics:
            self._show_evaluation(metric)

    def _show_baseline(self) -> None:
        self._set("train_baseline_ready", float(self._statistics.baseline.ready))
        for signal, (median, iqr) in self._statistics.baseline.frozen.items():
            self._set("train_baseline", median, signal, "median")
            self._set("train_baseline", iqr, signal, "iqr")

    def _on_loss(self, step: int, loss: float) -> None:
        self._set("train_loss", loss)
        if not math.isfinite(loss):
            self._count("train_nonfinite_total", "loss")
            return
        deviation = self._statistics.take_loss(step, loss)
        self._on_excess(step, loss)
        if deviation is None:
            return
        self._observe("train_step_loss_deviation_sigmas", deviation.sigmas)
        self._set("train_loss_chart", deviation.chart)
        if deviation.recentered:
            self._count("train_loss_recenters_total")

    def _on_excess(self, step: int, loss: float) -> None:
        rise = self._statistics.rise.update(loss)
        if rise is not None:
            self._observe("train_step_loss_rise_ratio", rise)
        excess = self._statistics.take_loss_excess(step, loss)
        if excess is not None:
            self._observe_excess("train_step_loss_excess_sigmas", excess)

    def _observe_excess(self, name: str, excess: tuple[float, float | None]) -> None:
        if self._statistics.baseline.ready:
            for steps, value in zip(EXCESS_LABELS, excess, strict=True):
                if value is not None:
                    self._observe(name, value, steps)

    def _on_grad_norm(self, norm: float, *, expected: bool) -> None:
        self._set("train_grad_norm", norm)
        self._set("train_grad_norm_squared", norm * norm)
        if not math.isfinite(norm):
            if not expected:
                self._count("train_nonfinite_total", "grad")
            return
        self._observe("train_step_grad_norm", norm)
        excess = self._statistics.take_grad_norm(norm)
        if excess is not None:
            self._observe("train_step_grad_norm_ratio", excess[0])
            self._observe_excess("train_step_grad_norm_excess_ratio", excess)

    def _on_layers(self, record: Record) -> None:
        first = int(record.values[0])
        for position, name in enumerate(self._layers[record.label][first : first + LAYERS_INLINE], 1):
            value = record.get(position)
            if value is not None:
                self._set(f"train_layer_{record.label}", value, name)

    def _on_checksum(self, record: Record) -> None:
        self._set("train_weight_checksum", record.values[0])
        self._set("train_weight_checksum_step", record.step)

    def _on_memory(self, record: Record) -> None:
        for kind, value in zip(MEMORY_KINDS, record.values, strict=False):
            self._set("train_device_memory_bytes", value, kind)
        for name, total in zip(_ALLOCATOR_COUNTERS, record.values[len(MEMORY_KINDS) :], strict=False):
            # The allocator counts since the process began; a counter that began anew counts on from here.
            self._count(name, amount=total - self._allocator_counts.get(name, 0.0))
            self._allocator_counts[name] = total

    def _on_evaluation(self, record: Record) -> None:
        metric, value = record.label, record.values[0]
        self._statistics.take_evaluation(metric, value)  # refuses what would be a series too many
        self._set("train_eval", value, metric)
        self._count("train_evals_total", metric)
        self.metrics.counter("train_eval_nonfinite_total", metric).inc(not math.isfinite(value))
        self._show_evaluation(metric)

    def _show_evaluation(self, metric: str) -> None:
        evaluations = self._statistics.evaluations
        for window, moments in evaluations.windows(metric).items():
            for stat, value in vars(moments).items():
                self._set("train_eval_window", value, metric, window, stat)
        for window, loss in evaluations.training_losses(metric).items():
            self._set("train_eval_training_loss", loss, metric, window)
        self._set("train_eval_noise", evaluations.noise(metric), metric)
        self._set("train_eval_best", evaluations.best(metric), metric)
        for (side, unit, length), level in self._statistics.evaluation_streaks(metric).items():
            self._set("train_eval_streak", level, metric, side, unit, str(length))
        self._set("train_eval_direction", 1 if evaluations.direction(metric) == "higher" else -1, metric)

    def _on_collective(self, record: Record) -> None:
        # Not all twelve operations from the start: a run uses two or three of them, and has a thousand ranks.
        self._observe("train_collective_seconds", record.values[0], record.label)
        self._set("train_last_collective_timestamp_seconds", record.time, record.label)

    def _on_checkpoint(self, record: Record) -> None:
        self._set("train_checkpoint_step", record.values[0], record.label)
        self._set("train_checkpoint_timestamp_seconds", record.values[1], record.label)

    def _on_command(self, record: Record) -> None:
        action, result = record.label, RESULTS[int(record.values[1])]
        self._count("trainswitch_commands_total", action, result)
        if action in _LEARNING_RATE_ACTIONS and result == "applied":
            self._begin_trial()
        self._observe("trainswitch_command_delay_seconds", max(0.0, record.values[0]))

    def _on_action(self, record: Record) -> None:
        for result in RESULTS:  # increase() cannot see a series' first increment
            self.metrics.counter("trainswitch_commands_total", record.label, result)

    def _begin_trial(self) -> None:
        self._statistics.begin_trial()
        for labels in list(self.metrics.values("train_eval_streak")):
            self.metrics.remove("train_eval_streak", *labels)

    def _state(self, state: str) -> None:
        self.state = state
        if state in _STANDING_STATES:
            self._statistics.interrupt()
        self._show_state()

    def _show_state(self) -> None:
        for name in RUN_STATES:
            self._set("train_run_state", float(name == (self._outside or self.state)), name)

    def see_from_outside(self, process: ProcessState, state: RunState | None) -> None:
        """Show what a watcher sees that does not depend on the trainer's word.

        Args:
            process: one of `PROCESS_STATES`.
            state: what the run's state is instead of the announced one, or None.
        """
        with self._lock:
            self._outside = state
            self._show_state()
            for name in PROCESS_STATES:
                self._set("train_process_state", float(name == process), name)

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.state in ENDED_STATES

    def _phase(self, phase: str, seconds: float) -> None:
        self._count("train_phase_seconds_total", phase, amount=seconds)

    def _on_learning_rates(self, record: Record) -> None:
        self._statistics.rates.begin_step()
        for group in range(int(record.get(Value.LEARNING_RATES) or 0)):
            self._learning_rate(group, record.values[FIRST_LEARNING_RATE + group])

    def _learning_rate(self, group: int, value: float) -> None:
        self._set("train_learning_rate", value, str(group))
        rates = self._statistics.rates
        ratio = rates.take(group, value)
        if ratio is not None:
            self._observe("train_learning_rate_ratio", ratio)
        if rates.unchanged is not None:
            self._set("train_learning_rate_unchanged_steps", rates.unchanged)

    def _advance_limits(self, step: int) -> None:
        if self._limits.advance(step):
            self._statistics.rates.begin_count()

    def _derived(self) -> Derived:
        limits = self._statistics.loss_limits()
        return Derived(*limits) if limits is not None else Derived()

    def _set(self, name: str, value: float, *labels: str) -> None:
        self.metrics.gauge(name, *labels).set(value)

    def _count(self, name: str, *labels: str, amount: float = 1.0) -> None:
        # A NaN would poison the counter for ever, and a negative amount is a mistake of the loop's.
        if amount > 0.0 and math.isfinite(amount):
            self.metrics.counter(name, *labels).inc(amount)

    def _observe(self, name: str, value: float, *labels: str) -> None:
        if math.isfinite(value):
            self.metrics.histogram(name, *labels).observe(value)
