"""Row "Time": how long steps take and where the time goes."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, graph, quantile, query, rate, series
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.models import common

TITLE = "Time"


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        graph(
            "Step time",
            "Duration of a step over the selected ranks, without pauses, evaluations and checkpoints; "
            "interpolated within histogram buckets.",
            "s",
            query("A", quantile(0.5, "train_step_seconds"), "median"),
            query("B", quantile(0.95, "train_step_seconds"), "95 %"),
            query("C", quantile(0.99, "train_step_seconds"), "99 %"),
        ).min(0),
        graph(
            "Data wait",
            "Share of the step time spent waiting for the next batch: near zero, the loader keeps up.",
            "percentunit",
            query(
                "A",
                f"sum by (rank) ({rate('train_data_wait_seconds_sum')}) "
                f"/ (sum by (rank) ({rate('train_step_seconds_sum')}) > 0)",
                "rank {{rank}}",
            ),
        )
        .min(0)
        .axis_soft_max(1),
        graph(
            "Phases",
            "Share of the wall-clock time that each phase of the loop took, averaged over the selected "
            "ranks. What is missing to 100 % is time that no phase has reported yet.",
            "percentunit",
            query("A", f"avg by (phase) ({rate('train_phase_seconds_total')})", "{{phase}}"),
        )
        .min(0)
        .fill_opacity(40)
        .stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL)),
        graph(
            "Steps per second",
            "Optimizer steps carried out, per rank; a rank that differs holds the others up.",
            "ops",
            query("A", f"sum by (rank) ({rate('train_steps_total')})", "rank {{rank}}"),
        ).min(0),
        graph(
            "Model FLOPs utilisation",
            "FLOPs of the model over what the hardware could have done in the time of the steps, over about"
            " a minute; needs throughput.peak_flops in the configuration.",
            "percentunit",
            query("A", series("train_model_flops_utilization_ratio"), "rank {{rank}}"),
        )
        .min(0)
        .axis_soft_max(1),
        graph(
            "Tokens per second",
            "Tokens consumed over the selected ranks, where the loop gives them to step().",
            "suffix: tokens/s",
            query("A", f"sum({rate('train_tokens_total')})", "tokens"),
        ).min(0),
        graph(
            "Samples per second",
            "Samples consumed over the selected ranks, where the loop gives them to step().",
            "suffix: samples/s",
            query("A", f"sum({rate('train_samples_total')})", "samples"),
        ).min(0),
    ]
