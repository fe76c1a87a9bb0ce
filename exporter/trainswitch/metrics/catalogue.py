"""Every metric of the trainer's endpoint, once: name, kind, labels, buckets and help.

Nothing else in the package names a metric: the aggregator builds its registry from this list. All series
carry `COMMON_LABELS` besides the labels given here.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from trainswitch.errors import CHECKPOINT_FAILURE_REASONS, CONTROL_FILE_REASONS
from trainswitch.intervention.commands import ACTIONS, RESULTS, RUN_STATES
from trainswitch.processes import PROCESS_STATES
from trainswitch.recording.records import MEMORY_KINDS
from trainswitch.statistics.excess import EXCESS_STEPS
from trainswitch.statistics.streaks import STREAK_EVALUATIONS, STREAK_STEPS

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
COLLECTIVE_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0)
RATE_RATIO_BUCKETS = (0.0008, 0.008, 0.08, 0.18, 0.4, 0.9, 1.0, 1.1, 2.5, 5.5, 12.0, 120.0, 1200.0)
"""Off the factors of usual schedules (2, 5, 10, 100), whose ratios may round to either side of themselves."""
RATIO_BUCKETS = (0.01, 0.1, 0.3, 0.5, 0.8, 1.0, 1.25, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
EXCESS_BUCKETS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0, 30.0)
EXCESS_RATIO_BUCKETS = (2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 100.0)
RISE_BUCKETS = (1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)

EXCESS_LABELS = tuple(map(str, EXCESS_STEPS))
AUTOCORRELATION_STEPS = 64
WINDOWS = ("recent", "reference")
STREAK_SIDES = ("upper", "lower")
PHASES = ("train", "data", "evaluate", "checkpoint", "paused")
NONFINITE_SOURCES = ("loss", "grad", "weight", "activation")
SKIP_REASONS = ("loss_scale", "guard", "user")
SINKS = ("csv", "tensorboard")
QUANTILES = ("0", "0.25", "0.5", "0.75", "1")
THROTTLE_REASONS = (
    "idle",
    "application_clocks",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "display_clocks",
)
NVLINK_ERRORS = ("crc_flit", "crc_data", "replay", "recovery", "ecc_data")
GPU_FAILURES = ("package", "driver", "no_device", "device", "error")


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
    collected: bool = False
    """Whether a collector gives its samples as a whole at each scrape, instead of one by one; see
    `MetricRegistry.add_source`."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """All label names, the common ones first."""
        return (*COMMON_LABELS, *(name for name, _ in self.labels))


def _gauge(name: str, text: str, /, **labels: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="gauge", help=text, labels=tuple(labels.items()))


def _counter(name: str, text: str, /, **labels: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="counter", help=text, labels=tuple(labels.items()))


def _histogram(name: str, text: str, buckets: tuple[float, ...], **labels: tuple[str, ...]) -> Metric:
    return Metric(name=name, kind="histogram", help=text, labels=tuple(labels.items()), buckets=buckets)


def _collected(*metrics: Metric) -> tuple[Metric, ...]:
    return tuple(dataclasses.replace(metric, collected=True) for metric in metrics)


CATALOGUE: tuple[Metric, ...] = (
    # run
    _gauge("train_run_info", "Constant 1; the run's properties are in the labels.", node=(), framework=()),
    _gauge("train_run_state", "1 for the state the run is in, 0 for the others.", state=RUN_STATES),
    _gauge(
        "train_process_state",
        "1 for the state that the sidecar sees the trainer's process in, 0 for the others; absent without a "
        "sidecar. hung: lives, but has not stepped for longer than sidecar.hang_* allows; suspended: held by "
        "SIGSTOP or a debugger; died: gone without closing its monitor, as after kill -9; ended: closed it.",
        state=PROCESS_STATES,
    ),
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
    _histogram(
        "train_step_loss_excess_sigmas",
        "How far the loss lies above the median of the 32 before it, in sigmas of their spread: each step's "
        "(steps 1), and what 3 of the last 5 steps reach (steps 3). After the warm-up only.",
        EXCESS_BUCKETS,
        steps=EXCESS_LABELS,
    ),
    _histogram(
        "train_step_loss_rise_ratio",
        "What 3 of the last 5 losses reach, over the first loss of the run; in warm-up, too. Nothing where "
        "that was below 0.01, or where a loss was not positive.",
        RISE_BUCKETS,
    ),
    _gauge(
        "train_loss_excess_sigmas",
        "What 3 of the last 5 steps reach of train_step_loss_excess_sigmas; 0 in warm-up and while paused.",
    ),
    _gauge(
        "train_loss_rise_ratio",
        "What 3 of the last 5 losses reach, over the run's first loss; 0 where unknown and while paused.",
    ),
    _gauge(
        "train_loss_level",
        "Median of the last 32 losses (recent), the lowest it ever was (best), and their spread (sigma).",
        stat=("recent", "best", "sigma"),
    ),
    _gauge(
        "train_loss_autocorrelation",
        "Autocorrelation at lag 1 of the last 64 losses about their line: near -1 if they jump up and down; "
        "needs a trend window of as many steps.",
    ),
    _gauge("train_loss_slope", "Least-squares slope of the loss over the trend window, per step."),
    _gauge("train_loss_slope_stderr", "Standard error of train_loss_slope."),
    _gauge(
        "train_loss_window",
        "Statistic of the finite losses in the trend window.",
        stat=("min", "median", "max"),
    ),
    _gauge(
        "train_loss_streak",
        "Highest level that so many steps in a row reached (upper), or lowest that none of them exceeded "
        "(lower): the best streak of the last 30 s and the last step; infinite where there was none.",
        side=STREAK_SIDES,
        steps=tuple(map(str, STREAK_STEPS)),
    ),
    # gradients
    _gauge(
        "train_grad_norm", "Global L2 norm of the gradients of the last step, before clipping; may be NaN."
    ),
    _gauge(
        "train_grad_norm_squared",
        "Square of train_grad_norm. Where gradients are sharded (DTensor), both are of this rank's share: "
        "sqrt(sum by (run) (train_grad_norm_squared)) is the global norm.",
    ),
    _gauge(
        "train_grad_norm_quantile",
        "Quantile of the gradient norm over the gradient window.",
        quantile=QUANTILES,
    ),
    _gauge(
        "train_grad_norm_streak",
        "The same of the gradient norm as train_loss_streak of the loss; steps that overflowed under "
        "automatic mixed precision are left out.",
        side=STREAK_SIDES,
        steps=tuple(map(str, STREAK_STEPS)),
    ),
    _histogram("train_step_grad_norm", "Gradient norm of each step, before clipping.", GRAD_NORM_BUCKETS),
    _histogram(
        "train_step_grad_norm_ratio", "Gradient norm of each step over its trailing median.", RATIO_BUCKETS
    ),
    _histogram(
        "train_step_grad_norm_excess_ratio",
        "Gradient norm over its trailing median: each step's (steps 1), and what 3 of the last 5 steps "
        "reach (steps 3). After the warm-up only.",
        EXCESS_RATIO_BUCKETS,
        steps=EXCESS_LABELS,
    ),
    _gauge(
        "train_grad_norm_excess_ratio",
        "What 3 of the last 5 steps reach of train_step_grad_norm_excess_ratio; 0 in warm-up and if paused.",
    ),
    _gauge(
        "train_grad_norm_climb_ratio",
        "Median gradient norm of the last 64 steps over that of the 256 before them; absent until there are "
        "so many, and where statistics.gradient_window_steps is less than both.",
    ),
    # layers: sampled; a layer is a module of the model, "(other)" is all that have no series of their own
    _gauge(
        "train_layer_grad_norm",
        "L2 norm of a layer's gradients before clipping, every sampling.layers steps; of this rank's share "
        "where they are sharded.",
        layer=(),
    ),
    _gauge(
        "train_layer_weight_norm",
        "L2 norm of a layer's weights, every sampling.weights steps; of this rank's share where they are "
        "sharded.",
        layer=(),
    ),
    _gauge(
        "train_layer_update_ratio",
        "Norm of what the optimizer's step changed in a layer's weights over the norm they had before it.",
        layer=(),
    ),
    _gauge(
        "train_layer_inactive_ratio",
        "Share of a layer's activations with a slope of about zero in a training forward pass: zero after a "
        "ReLU, saturated after tanh or sigmoid, far left of zero before GELU or SiLU; every "
        "sampling.activations steps.",
        layer=(),
    ),
    _gauge(
        "train_weight_checksum",
        "Sum of the weights' bit patterns modulo 2^32, every sampling.checksum steps: equal on data-parallel "
        "replicas. Shards are left out. Compare ranks only where train_weight_checksum_step is equal.",
    ),
    _gauge("train_weight_checksum_step", "Step after which train_weight_checksum was taken."),
    # numerics
    _counter(
        "train_nonfinite_total",
        "Steps whose value was NaN or infinite; weights and activations only as often as they are sampled.",
        source=NONFINITE_SOURCES,
    ),
    _counter("train_skipped_steps_total", "Steps whose update was skipped.", reason=SKIP_REASONS),
    _gauge(
        "train_guarded",
        "1 while the optimizer's steps on gradients that are not finite are skipped, by the guard or by a "
        "GradScaler; 0 while the guard is off. Absent without an optimizer.",
    ),
    _gauge(
        "train_loss_scale",
        "Scale of the loss under automatic mixed precision, read from the scaler or given to step().",
    ),
    _counter(
        "train_grad_clips_total", "Steps whose gradients clip_grad_norm_() or clip_gradients scaled down."
    ),
    # schedule
    _gauge("train_learning_rate", "Learning rate that the last step used, per parameter group.", group=()),
    _histogram(
        "train_learning_rate_ratio",
        "Learning rate of a step over that of the step before, for each parameter group whose rate changed "
        "and was 0 at neither.",
        RATE_RATIO_BUCKETS,
    ),
    _gauge(
        "train_learning_rate_unchanged_steps",
        "Steps since the learning rate of any parameter group last changed, or since the phase of training "
        "or the session began.",
    ),
    # time
    _histogram(
        "train_step_seconds",
        "Duration of a step, from the end of one to the end of the next, "
        "without pauses, evaluations and checkpoints. The first step of a session, or after restore(), "
        "compiles and is left out; one that compiles later is a long step.",
        SECONDS_BUCKETS,
    ),
    _histogram(
        "train_data_wait_seconds", "Time a step waited for its batch, as batches() saw it.", SECONDS_BUCKETS
    ),
    _counter(
        "train_phase_seconds_total",
        "Time spent in each phase of the loop; the phases do not overlap. The first step of a session, or "
        "after restore(), compiles and is left out.",
        phase=PHASES,
    ),
    _gauge(
        "train_model_flops_utilization_ratio",
        "FLOPs of the model over what this rank's hardware could have done in the time of its steps, over "
        "about a minute; needs throughput.peak_flops, and tokens in step() unless flops_per_step is set.",
    ),
    # collectives
    _histogram(
        "train_collective_seconds",
        "Duration of a collective operation, from its issue until the host's wait for it returned. Not seen: "
        "operations on a CUDA device, which the host does not wait for, and those that C++ issues "
        "(DistributedDataParallel's buckets, functional collectives). Only with several ranks.",
        COLLECTIVE_BUCKETS,
        op=(),
    ),
    _gauge(
        "train_last_collective_timestamp_seconds",
        "Unix time at which an operation was last seen to end, with the same exceptions.",
        op=(),
    ),
    _gauge(
        "train_collective_waiting_since_timestamp_seconds",
        "Unix time since which the rank waits for an operation, told once that has lasted a second; 0 where "
        "it does not. Those that train_collective_seconds does not see are found once no step has passed for "
        "a few seconds, in PyTorch's flight recorder.",
        op=(),
    ),
    # memory
    _gauge(
        "train_device_memory_bytes",
        "Memory of the rank's CUDA device at the end of a step, as PyTorch's allocator sees it, at most once "
        "a second: in tensors (allocated; peak is its highest), held for them (reserved), all there is "
        "(capacity).",
        kind=MEMORY_KINDS,
    ),
    _counter(
        "train_cuda_alloc_retries_total",
        "Times that PyTorch's allocator found no room, gave back what it cached, and asked again.",
    ),
    _counter("train_cuda_ooms_total", "Out-of-memory errors of PyTorch's allocator, also those caught."),
    # evaluation
    _gauge("train_eval", "Newest value of each evaluation metric.", metric=()),
    _counter("train_evals_total", "Evaluations reported, per metric.", metric=()),
    _counter(
        "train_eval_nonfinite_total",
        "Evaluations whose value was NaN or infinite; windows and best leave them out.",
        metric=(),
    ),
    _gauge(
        "train_eval_window",
        "Moment of the last evaluations of a metric (recent) or of those before them (reference), as Welch's "
        "t-test needs it. Mean of none and variance (n - 1) of fewer than two are NaN.",
        metric=(),
        window=WINDOWS,
        stat=("mean", "variance", "count"),
    ),
    _gauge(
        "train_eval_streak",
        "Level that so many of the newest evaluations, or of the newest evaluations of so many epochs, all "
        "reached (upper), or that none of them exceeded (lower).",
        metric=(),
        side=STREAK_SIDES,
        unit=("evaluations", "epochs"),
        length=tuple(map(str, STREAK_EVALUATIONS)),
    ),
    _gauge(
        "train_eval_training_loss",
        "Mean training loss at the evaluations of a window: each with the steps since the evaluation before.",
        metric=(),
        window=WINDOWS,
    ),
    _gauge(
        "train_eval_noise",
        "Standard deviation by which a metric scatters from one evaluation to the next, from successive "
        "differences in both windows; NaN of fewer than three evaluations.",
        metric=(),
    ),
    _gauge("train_eval_best", "Best value of each evaluation metric, in its better direction.", metric=()),
    _gauge(
        "train_eval_direction",
        "1 where a higher value of the metric is better, -1 where a lower one is.",
        metric=(),
    ),
    # limits
    _gauge(
        "train_limit",
        "Limit of a signal that is in force now, as configured. loss_ratio: of train_loss_window's max over "
        "its median.",
        signal=(),
        bound=(),
        severity=(),
    ),
    _gauge(
        "train_limit_steps",
        "Steps above the limit before it is critical, where limits.steps says so; else the rules' own 3.",
        signal=(),
        bound=(),
        severity=(),
    ),
    _gauge(
        "train_limit_info",
        "1 for each limit that is in force now, 0 for those of other phases; phase is empty where a limit is "
        "of every phase without one of its own, reason says why it has its value.",
        signal=(),
        bound=(),
        severity=(),
        phase=(),
        reason=(),
    ),
    _gauge(
        "train_phase",
        "1 for the phase of training that the step is in, as configured under phases, 0 for the others. What "
        "the loop spends its time on is train_phase_seconds_total.",
        phase=(),
    ),
    _gauge(
        "train_baseline",
        "Statistic of a signal over the warm-up, frozen when it ended; samples_per_second (stat expected): "
        "throughput.baseline_samples_per_second.",
        signal=(),
        stat=(),
    ),
    _gauge("train_baseline_ready", "1 once the warm-up is over: relative limits hold from here on."),
    _counter(
        "train_baseline_restarts_total",
        "Times the step counter went back without a rollback or restore(): all statistics began anew.",
    ),
    # checkpoints
    _gauge(
        "train_checkpoint_step",
        "Step of the newest checkpoint of a kind; absent until there is one.",
        kind=(),
    ),
    _gauge(
        "train_checkpoint_interval_steps",
        "Steps from one checkpoint to the next, as configured; 0 where only commands ask for one; of rank 0.",
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
    # GPU, as the driver sees it
    *_collected(
        _gauge(
            "train_gpu_info",
            "Constant 1; which card a gpu label stands for. Stays when the card is lost.",
            gpu=(),
            uuid=(),
            name=(),
            driver=(),
        ),
        _gauge(
            "train_gpu_up",
            "1 where the card answered in the last round, 0 where it is lost or the round is overdue; "
            "absent where no card was ever found.",
            gpu=(),
        ),
        _gauge(
            "train_gpu_utilization_ratio",
            "Share of the driver's last sampling period with a kernel running.",
            gpu=(),
        ),
        _gauge(
            "train_gpu_memory_controller_utilization_ratio",
            "Share of the driver's last sampling period in which device memory was read or written.",
            gpu=(),
        ),
        _gauge(
            "train_gpu_memory_bytes",
            "Device memory: all of it, and what all processes and the driver have taken.",
            gpu=(),
            kind=("used", "total"),
        ),
        _gauge("train_gpu_temperature_celsius", "Temperature of the GPU's die.", gpu=()),
        _gauge("train_gpu_power_watts", "Power draw of the board.", gpu=()),
        _gauge("train_gpu_power_limit_watts", "Power limit in force.", gpu=()),
        _gauge("train_gpu_clock_hertz", "Clock frequency.", gpu=(), domain=("sm", "memory")),
        _gauge(
            "train_gpu_throttle_active",
            "1 for each reason that holds the clocks down now, 0 for the others.",
            gpu=(),
            reason=THROTTLE_REASONS,
        ),
        _counter("train_gpu_energy_joules_total", "Energy used since the driver was loaded.", gpu=()),
        _counter(
            "train_gpu_ecc_errors_total",
            "Memory errors since the driver was loaded.",
            gpu=(),
            type=("corrected", "uncorrected"),
        ),
        _counter(
            "train_gpu_nvlink_errors_total", "NVLink errors, all links together.", gpu=(), type=NVLINK_ERRORS
        ),
        _counter(
            "train_gpu_xid_errors_total",
            "XID errors reported since the monitor attached; the known grave codes are there from the start.",
            gpu=(),
            xid=(),
        ),
        _gauge(
            "train_gpu_xid_timestamp_seconds", "Unix time of the newest XID error of a code.", gpu=(), xid=()
        ),
        _gauge(
            "train_gpu_collect_success",
            "1 where the last round read every card, 0 where it did not or is overdue.",
        ),
        _gauge("train_gpu_collect_timestamp_seconds", "Unix time at which the last such full round ended."),
        _gauge("train_gpu_collect_seconds", "Duration of the last round."),
        _counter(
            "train_gpu_collect_failures_total",
            "Failures to collect: no nvidia-ml-py, no working driver, no card, a lost card, anything else.",
            reason=GPU_FAILURES,
        ),
    ),
    # the trainer's process and its machine
    *_collected(
        _gauge("train_process_resident_memory_bytes", "Resident memory of the trainer's process."),
        _counter("train_process_cpu_seconds_total", "CPU time of the trainer's process, user and system."),
        _gauge("train_process_open_fds", "Open file descriptors of the trainer's process."),
        _gauge("train_process_threads", "Threads of the trainer's process."),
        _gauge(
            "train_host_memory_bytes",
            "Memory of the machine; only from the first rank on it.",
            kind=("total", "available"),
        ),
        _gauge(
            "train_host_load_ratio",
            "Load average over one minute per CPU; above 1 something waits; only from the first rank.",
        ),
    ),
    # self
    _counter(
        "trainswitch_overhead_seconds_total",
        "Time spent by trainswitch itself.",
        where=("step", "aggregate", "render", "sinks"),
    ),
    _counter(
        "trainswitch_sink_errors_total",
        "Times a sink could not be opened or written; it is tried again every 30 s.",
        sink=SINKS,
    ),
    _counter(
        "trainswitch_sidecar_restarts_total",
        "Times the trainer started a sidecar again that had died. Only this counter goes on over a restart: "
        "the others begin anew.",
    ),
    _counter("trainswitch_records_dropped_total", "Records overwritten before the aggregator read them."),
    _gauge("trainswitch_build_info", "Constant 1; version of trainswitch and Python.", version=(), python=()),
)
