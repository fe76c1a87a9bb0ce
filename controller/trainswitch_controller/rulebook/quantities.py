"""What a rule can watch: the short names, and what each stands for among the exported metrics.

Besides these, every metric of the trainer's catalogue can be named as it is, and every evaluation metric.
"""

from __future__ import annotations

from typing import Final

from trainswitch.metrics.catalogue import CATALOGUE, Metric
from trainswitch.statistics.evaluations import default_direction
from trainswitch_controller.rulebook.quantity import (
    RECENT,
    Quantity,
    Unit,
    baseline,
    counted_rate,
    mean_duration,
    of_histogram,
    share,
)
from trainswitch_controller.rulebook.sources import Input, Source, gauge, quotient

EVALUATION_PREFIXES = ("val_", "valid_", "validation_", "eval_", "test_")
"""Names that begin so are evaluation metrics; others are written ``eval:name``."""

_GPU = ("gpu",)
_LAYER = ("layer",)

QUANTITIES: Final[tuple[Quantity, ...]] = (
    Quantity(
        name="loss",
        aliases=("train_loss", "training_loss"),
        chinese=("训练损失", "损失"),
        kind="step",
        signed=True,
        value=gauge("train_loss"),
        streak="train_loss_streak",
        statistics={
            "mean": gauge("train_loss_center"),
            **{stat: gauge("train_loss_window", stat=stat) for stat in ("min", "median", "max")},
        },
        references={
            "mean": gauge("train_loss_center"),
            "median": gauge("train_loss_window", stat="median"),
            "baseline": baseline("loss"),
        },
        sigma=(gauge("train_loss_center"), gauge("train_loss_sigma")),
        usual="median",
        nonfinite='train_nonfinite_total{source="loss"}',
        help="Training loss of each step.",
    ),
    Quantity(
        name="grad_norm",
        aliases=("gradient_norm", "grad", "gradients", "train_grad_norm", "global_grad_norm"),
        chinese=("梯度范数", "梯度"),
        kind="step",
        value=gauge("train_grad_norm"),
        streak="train_grad_norm_streak",
        statistics={
            "mean": quotient("train_step_grad_norm_sum", "train_step_grad_norm_count", RECENT),
            **{
                stat: gauge("train_grad_norm_quantile", quantile=quantile)
                for stat, quantile in (("min", "0"), ("median", "0.5"), ("max", "1"), ("p75", "0.75"))
            },
        },
        references={
            "mean": quotient("train_step_grad_norm_sum", "train_step_grad_norm_count", RECENT),
            "median": gauge("train_grad_norm_quantile", quantile="0.5"),
            "baseline": baseline("grad_norm"),
        },
        usual="median",
        nonfinite='train_nonfinite_total{source="grad"}',
        help="Global gradient norm of each step, before clipping.",
    ),
    Quantity(
        name="learning_rate",
        aliases=("lr", "train_learning_rate"),
        chinese=("学习率",),
        kind="sampled",
        value=gauge("train_learning_rate", free=("group",)),
        help="Learning rate of each parameter group.",
    ),
    Quantity(
        name="loss_scale",
        aliases=("train_loss_scale",),
        chinese=("损失缩放",),
        kind="sampled",
        value=gauge("train_loss_scale"),
        help="Loss scale under automatic mixed precision.",
    ),
    Quantity(
        name="weights",
        aliases=("weight", "parameters"),
        chinese=("权重", "参数"),
        kind="sampled",
        value=gauge("train_layer_weight_norm", free=_LAYER),
        nonfinite='train_nonfinite_total{source="weight"}',
        help="Norm of each layer's weights.",
    ),
    Quantity(
        name="activations",
        aliases=("activation", "inactive_ratio"),
        chinese=("激活",),
        kind="sampled",
        unit="ratio",
        value=gauge("train_layer_inactive_ratio", free=_LAYER),
        nonfinite='train_nonfinite_total{source="activation"}',
        help="Share of each layer's activations with a slope of about zero.",
    ),
    Quantity(
        name="layer_grad_norm",
        aliases=("layer_gradient_norm",),
        chinese=("层梯度范数",),
        kind="sampled",
        value=gauge("train_layer_grad_norm", free=_LAYER),
        help="Gradient norm of each layer.",
    ),
    Quantity(
        name="update_ratio",
        aliases=("layer_update_ratio",),
        chinese=("更新比",),
        kind="sampled",
        value=gauge("train_layer_update_ratio", free=_LAYER),
        help="Size of each layer's update over that of its weights.",
    ),
    counted_rate(
        "throughput",
        "train_samples_total",
        "Samples a second of all ranks together, while steps are made.",
        aliases=("samples_per_second",),
        chinese=("吞吐量", "吞吐"),
    ),
    counted_rate(
        "tokens_per_second",
        "train_tokens_total",
        "Tokens a second of all ranks together, while steps are made.",
        aliases=("token_throughput",),
        chinese=("每秒词元",),
    ),
    mean_duration(
        "step_time",
        "train_step_seconds",
        "Mean duration of a step over 5 minutes.",
        aliases=("step_seconds", "iteration_time"),
        chinese=("步时", "单步耗时"),
    ),
    mean_duration(
        "data_wait",
        "train_data_wait_seconds",
        "Mean time a step waits for its batch, over 5 minutes.",
        aliases=("data_time", "data_wait_seconds"),
        chinese=("数据等待",),
    ),
    Quantity(
        name="data_wait_share",
        aliases=("data_wait_ratio",),
        chinese=("数据等待占比",),
        kind="sampled",
        unit="ratio",
        value=quotient("train_data_wait_seconds_sum", "train_step_seconds_sum", RECENT),
        help="Share of the steps' time that was spent waiting for data, over 5 minutes.",
    ),
    Quantity(
        name="mfu",
        aliases=("flops_utilization", "model_flops_utilization"),
        chinese=("算力利用率",),
        kind="sampled",
        unit="ratio",
        value=gauge("train_model_flops_utilization_ratio"),
        help="Model FLOPs utilisation.",
    ),
    Quantity(
        name="gpu_utilization",
        aliases=("gpu_util", "gpu_usage"),
        chinese=("显卡利用率", "利用率"),
        kind="sampled",
        unit="ratio",
        value=gauge("train_gpu_utilization_ratio", free=_GPU),
        help="Share of time with a kernel running, of each GPU.",
    ),
    Quantity(
        name="gpu_memory",
        aliases=("gpu_memory_ratio", "gpu_mem", "vram"),
        chinese=("显存",),
        kind="sampled",
        unit="ratio",
        value=share("train_gpu_memory_bytes", "used", "total", free=_GPU),
        measured_in={"bytes": "gpu_memory_bytes"},
        help="Used device memory over all of it, of each GPU.",
    ),
    Quantity(
        name="gpu_memory_bytes",
        kind="sampled",
        unit="bytes",
        value=gauge("train_gpu_memory_bytes", free=_GPU, kind="used"),
        help="Used device memory of each GPU.",
    ),
    Quantity(
        name="gpu_temperature",
        aliases=("gpu_temp",),
        chinese=("显卡温度", "温度"),
        kind="sampled",
        unit="celsius",
        value=gauge("train_gpu_temperature_celsius", free=_GPU),
        help="Temperature of each GPU.",
    ),
    Quantity(
        name="gpu_power",
        chinese=("功耗",),
        kind="sampled",
        unit="watts",
        value=gauge("train_gpu_power_watts", free=_GPU),
        help="Power draw of each GPU.",
    ),
    Quantity(
        name="host_memory",
        aliases=("memory", "cpu_memory"),
        chinese=("内存",),
        kind="sampled",
        unit="ratio",
        value=share("train_host_memory_bytes", "available", "total", rest=True),
        measured_in={"bytes": "process_memory"},
        help="Used memory of the machine over all of it.",
    ),
    Quantity(
        name="process_memory",
        aliases=("rss", "resident_memory"),
        chinese=("进程内存",),
        kind="sampled",
        unit="bytes",
        value=gauge("train_process_resident_memory_bytes"),
        help="Resident memory of the trainer's process.",
    ),
    Quantity(
        name="host_load",
        aliases=("cpu_load", "load"),
        chinese=("负载",),
        kind="sampled",
        unit="ratio",
        value=gauge("train_host_load_ratio"),
        help="Load average of the machine per CPU.",
    ),
    Quantity(
        name="checkpoint_age",
        chinese=("检查点时长",),
        kind="sampled",
        unit="seconds",
        value=Source(
            'time() - last_over_time(train_checkpoint_timestamp_seconds{kind="latest"}[30s])',
            (Input("train_checkpoint_timestamp_seconds", (("kind", "latest"),), (-1.0, 0.0), (0.0, 1.0)),),
        ),
        help="Time since the newest checkpoint.",
    ),
)

CHINESE_NAMES: Final[tuple[str, ...]] = tuple(name for one in QUANTITIES for name in one.chinese)
"""The Chinese names of all quantities."""

_BY_NAME: Final[dict[str, Quantity]] = {
    name: one for one in QUANTITIES for name in (one.name, *one.aliases, *one.chinese)
}
_CATALOGUE: Final[dict[str, Metric]] = {metric.name: metric for metric in CATALOGUE}


def known_names() -> list[str]:
    """Return every name that a rule may use for a metric, but for those of evaluation metrics."""
    return [*_BY_NAME, *_CATALOGUE]


def find(name: str) -> Quantity | None:
    """Return what a rule means by a metric's name; None where nobody exports such a thing."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name in _CATALOGUE:
        return _exported(_CATALOGUE[name])
    if name.startswith(("eval:", "eval.")):
        return _evaluation(name[5:]) if name[5:] else None
    if name.startswith(EVALUATION_PREFIXES) and not name.endswith("_"):
        return _evaluation(name)
    return None


def _exported(metric: Metric) -> Quantity:
    free = tuple(label for label, _ in metric.labels)
    if metric.kind != "histogram":
        value = gauge(metric.name, free=free)
        statistics = {}
    elif metric.buckets[0] < 0.0:
        statistics = {k: v for k, v in of_histogram(metric.name).items() if k != "mean"}  # it has no _sum
        value = statistics["median"]
    else:
        statistics = of_histogram(metric.name)
        value = statistics["mean"]
    unit: Unit = ""
    if "timestamp" not in metric.name:
        endings: tuple[Unit, ...] = ("ratio", "bytes", "seconds")
        for ending in endings:
            if metric.name.removesuffix("_total").endswith(f"_{ending}"):
                unit = ending
    return Quantity(
        name=metric.name,
        kind="sampled",
        signed=True,
        value=value,
        statistics=statistics,
        unit=unit,
        help=metric.help,
    )


def _evaluation(metric: str) -> Quantity:
    better = default_direction(metric)
    windows = {
        name: gauge("train_eval_window", metric=metric, window=window, stat="mean")
        for name, window in (("recent", "recent"), ("reference", "reference"))
    }
    return Quantity(
        name=metric,
        kind="evaluation",
        signed=True,
        value=gauge("train_eval", metric=metric),
        streak="train_eval_streak",
        streak_labels=(("metric", metric),),
        statistics={"mean": windows["recent"]},
        references={"best": gauge("train_eval_best", metric=metric), "mean": windows["reference"]},
        usual="best",
        worse="falls" if better == "higher" else "rises",
        nonfinite=f'train_eval_nonfinite_total{{metric="{metric}"}}',
        help=f"Newest evaluation of {metric}.",
    )
