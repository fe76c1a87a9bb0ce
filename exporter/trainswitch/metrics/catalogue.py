"""Every metric of the trainer's endpoint, once: name, kind, labels, buckets and help.

Nothing else in the package names a metric: the aggregator builds its registry from this list. All series
carry `COMMON_LABELS` besides the labels given here.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from trainswitch.errors import CHECKPOINT_FAILURE_REASONS, CONTROL_FILE_REASONS
from trainswitch.intervention.commands import ACTIONS, RESULTS, RUN_STATES

COMMON_LABELS = ("run", "rank")

SECONDS_BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
)
DEVIATION_BUCKETS = (-12.0, -8.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 30.0)
GRAD_NORM_BUCKETS = (
    1e-8,
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    1e-2,
    0.03,
    0.1,
    0.3,
    1.0,
    3.0,
    10.0,
    30.0,
    100.0,
    300.0,
    1e3,
    1e4,
    1e5,
    1e6,
)
RATIO_BUCKETS = (0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.25, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)

PHASES = ("train", "data", "evaluate", "checkpoint", "paused")
NONFINITE_SOURCES = ("loss", "grad")
SKIP_REASONS = ("loss_scale", "guard", "user")
QUANTILES = ("0", "0.25", "0.5", "0.75", "1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric family of the trainer's endpoint."""

    name: str
    """Full Prometheus name, base units; a counter's ends in ``_total``."""
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(label, values known at start). Counters and histograms have a series for each combination at once;
    an empty
    tuple of values means that they are known only at run time."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without +Inf."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """All label names, the common ones first."""
        return (*COMMON_LABELS, *(name for name, _ in self.labels))


def _gauge(name: str, text: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="gauge", help=text, labels=tuple(labels.items()))


def _counter(name: str, text: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="counter", help=text, labels=tuple(labels.items()))


def _histogram(name: str, text: str, buckets: tuple[float, ...], **labels: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="histogram", help=text, labels=tuple(labels.items()), buckets=buckets)


CATALOGUE: tuple[Metric, ...] = (
    # run
    _gauge("train_run_info", "Constant 1; the run's properties are in the labels.", node=(), framework=()),
    _gauge("train_run_state", "1 for the state the run is in, 0 for the others.", state=RUN_STATES),
    _gauge("train_world_size", "Number of ranks."),
    _gauge("train_start_timestamp_seconds", "Unix time at which this session of the trainer attached."),
    _gauge("train_config_info", "Constant 1; sha256 of the monitor's configuration.", sha256=()),
    # progress
    _gauge("train_step", "Step number of the optimizer; goes back after a rollback."),
    _counter("train_steps_total", "Optimizer steps carried out, including repeated ones."),
    _counter("train_samples_total", "Samples consumed, as given to step()."),
    _counter("train_tokens_total", "Tokens consumed, as given to step()."),
    _gauge("train_last_step_timestamp_seconds", "Unix time at which the last step ended."),
    _gauge("train_epoch", "Epoch, as given to step()."),
    # loss
    _gauge("train_loss", "Loss of the last step, as the loop gave it; may be NaN."),
    _gauge("train_loss_center", "Centre line of the loss's control chart: EWMA of winsorised losses."),
    _gauge("train_loss_sigma", "Scale of the loss's control chart: one sigma, in units of the loss."),
    _gauge("train_loss_chart", "EWMA chart statistic of the loss, in its own sigmas (Roberts 1959)."),
    _counter("train_loss_recenters_total", "Times the control chart moved its centre line to a new level."),
    _histogram(
        "train_step_loss_deviation_sigmas",
        "Signed deviation of each step's loss from the centre line, in sigmas; has no _sum.",
        DEVIATION_BUCKETS,
    ),
    _gauge("train_loss_slope", "Least-squares slope of the loss over the trend window, per step."),
    _gauge("train_loss_slope_stderr", "Standard error of train_loss_slope."),
    _gauge(
        "train_loss_window",
        "Statistic of the finite losses in the trend window.",
        stat=("min", "median", "max"),
    ),
    # gradients
    _gauge(
        "train_grad_norm", "Global L2 norm of the gradients of the last step, before clipping; may be NaN."
    ),
    _gauge("train_grad_norm_squared", "Square of train_grad_norm; sharded ranks add up in PromQL."),
    _gauge(
        "train_grad_norm_quantile",
        "Quantile of the gradient norm over the gradient window.",
        quantile=QUANTILES,
    ),
    _histogram("train_step_grad_norm", "Gradient norm of each step, before clipping.", GRAD_NORM_BUCKETS),
    _histogram(
        "train_step_grad_norm_ratio", "Gradient norm of each step over its trailing median.", RATIO_BUCKETS
    ),
    # numerics
    _counter("train_nonfinite_total", "Steps whose value was NaN or infinite.", source=NONFINITE_SOURCES),
    _counter("train_skipped_steps_total", "Steps whose update was skipped.", reason=SKIP_REASONS),
    _gauge("train_loss_scale", "Scale of the loss under automatic mixed precision, as given to step()."),
    _counter("train_grad_clips_total", "Steps whose gradients clip_grad_norm_() scaled down."),
    # schedule
    _gauge("train_learning_rate", "Learning rate that the last step used, per parameter group.", group=()),
    # time
    _histogram(
        "train_step_seconds",
        "Duration of a step, from the end of one to the end of the next, "
        "without pauses, evaluations and checkpoints.",
        SECONDS_BUCKETS,
    ),
    _histogram(
        "train_data_wait_seconds", "Time a step waited for its batch, as batches() saw it.", SECONDS_BUCKETS
    ),
    _counter("train_phase_seconds_total", "Time spent in each phase of the loop.", phase=PHASES),
    # evaluation
    _gauge("train_eval", "Newest value of each evaluation metric.", metric=()),
    _counter("train_evals_total", "Evaluations reported, per metric.", metric=()),
    # limits
    _gauge("train_limit", "Absolute limit of a signal, as configured.", signal=(), bound=(), severity=()),
    _gauge(
        "train_baseline", "Statistic of a signal over the warm-up, frozen when it ended.", signal=(), stat=()
    ),
    _gauge("train_baseline_ready", "1 once the warm-up is over: relative limits hold from here on."),
    # checkpoints
    _gauge(
        "train_checkpoint_step",
        "Step of the newest checkpoint of a kind; absent until there is one.",
        kind=(),
    ),
    _gauge("train_checkpoint_timestamp_seconds", "Unix time of the newest checkpoint of a kind.", kind=()),
    _histogram(
        "train_checkpoint_seconds",
        "Duration of writing a checkpoint, off the training thread.",
        SECONDS_BUCKETS,
    ),
    _counter(
        "train_checkpoint_failures_total", "Checkpoints that failed.", reason=CHECKPOINT_FAILURE_REASONS
    ),
    # control
    _counter(
        "trainswitch_commands_total", "Commands answered.", action=(*ACTIONS, "unknown"), result=RESULTS
    ),
    _histogram("trainswitch_command_delay_seconds", "From a command's issue to its answer.", SECONDS_BUCKETS),
    _counter(
        "trainswitch_control_file_errors_total",
        "Control files not taken or not written.",
        reason=CONTROL_FILE_REASONS,
    ),
    _gauge(
        "trainswitch_control_file_read_timestamp_seconds",
        "Unix time at which the control folder was last polled.",
    ),
    # self
    _counter(
        "trainswitch_overhead_seconds_total",
        "Time spent by trainswitch itself.",
        where=("step", "aggregate", "render"),
    ),
    _counter("trainswitch_records_dropped_total", "Records overwritten before the aggregator read them."),
    _gauge("trainswitch_build_info", "Constant 1; version of trainswitch and Python.", version=(), python=()),
)
