"""Row "GPUs": how busy, how full, how hot, how fast."""

from __future__ import annotations

from grafana.builders.common import (
    DASHED,
    PanelBuilder,
    graph,
    increase,
    instant,
    limit_lines,
    number,
    query,
    series,
    steps,
)

TITLE = "GPUs"

_CARD = "rank {{rank}} GPU {{gpu}}"


def _by_card(name: str, *matchers: str) -> str:
    return f"max by (rank, gpu) ({series(name, *matchers)})"


_USED = _by_card("train_gpu_memory_bytes", 'kind="used"')
_TOTAL = _by_card("train_gpu_memory_bytes", 'kind="total"')


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        number(
            "GPUs",
            "Cards that answer the monitor, and cards that were ever found.",
            "none",
            instant("A", f"sum({series('train_gpu_up')})", "answer"),
            instant("B", f"count({series('train_gpu_up')})", "found"),
        ),
        number(
            "Utilisation",
            "Share of the time with a kernel running, averaged over the selected ranks' cards.",
            "percentunit",
            instant("A", f"avg({series('train_gpu_utilization_ratio')})"),
        ).thresholds(steps((None, "orange"), (0.8, "green"))),
        number(
            "Fullest memory",
            "Share of device memory that is taken on the card with least left.",
            "percentunit",
            instant("A", f"max({_USED} / {_TOTAL})"),
        ).thresholds(steps((None, "green"), (0.95, "orange"), (0.98, "red"))),
        number(
            "Hottest",
            "Temperature of the hottest card.",
            "celsius",
            instant("A", f"max({series('train_gpu_temperature_celsius')})"),
        ),
        number(
            "Power",
            "Power draw of the selected ranks' cards together.",
            "watt",
            instant("A", f"sum({series('train_gpu_power_watts')})"),
        ),
        number(
            "Energy",
            "Energy that the selected ranks' cards used in the time shown.",
            "joule",
            instant("A", f"sum(increase({series('train_gpu_energy_joules_total')}[$__range]))"),
        ),
        number(
            "Throttled",
            "Cards whose clocks are held down by heat or missing power at the moment.",
            "none",
            instant(
                "A",
                "count(max by (rank, gpu) ("
                + series(
                    "train_gpu_throttle_active", 'reason=~"hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"'
                )
                + f") == 1) or 0 * count({series('train_gpu_up')})",
            ),
        ).thresholds(steps((None, "green"), (1, "red"))),
        number(
            "XID errors",
            "XID errors that the driver has reported in the time shown, of codes known from the start.",
            "none",
            instant("A", f"sum(increase({series('train_gpu_xid_errors_total')}[$__range]))"),
        )
        .decimals(0)
        .thresholds(steps((None, "green"), (1, "red"))),
        limit_lines(
            graph(
                "GPU utilisation",
                "Share of the driver's last sampling period with a kernel running. Waiting for other ranks "
                "in a collective operation counts as running.",
                "percentunit",
                query("A", _by_card("train_gpu_utilization_ratio"), _CARD),
            )
            .min(0)
            .axis_soft_max(1),
            (None, "transparent"),
            (0.8, "orange"),
        ),
        graph(
            "Memory bandwidth in use",
            "Share of the driver's last sampling period in which device memory was read or written.",
            "percentunit",
            query("A", _by_card("train_gpu_memory_controller_utilization_ratio"), _CARD),
        )
        .min(0)
        .axis_soft_max(1),
        limit_lines(
            graph(
                "Device memory",
                "Share of device memory that all processes and the driver have taken; the allocator's cache"
                " is part of it.",
                "percentunit",
                query("A", f"{_USED} / {_TOTAL}", _CARD),
            )
            .min(0)
            .axis_soft_max(1),
            (None, "transparent"),
            (0.98, "red"),
        ),
        graph(
            "Temperature",
            "Temperature of each card's die.",
            "celsius",
            query("A", _by_card("train_gpu_temperature_celsius"), _CARD),
        ),
        graph(
            "Power draw",
            "Power draw of each board and the limit in force (dashed).",
            "watt",
            query("A", _by_card("train_gpu_power_watts"), _CARD),
            query("B", f"max({series('train_gpu_power_limit_watts')})", "highest limit"),
        )
        .min(0)
        .override_by_query("B", [DASHED]),
        graph(
            "Clocks",
            "Clock of the multiprocessors of each card, and of the memory (dashed). One card below the "
            "others holds all ranks up.",
            "hertz",
            query("A", _by_card("train_gpu_clock_hertz", 'domain="sm"'), _CARD),
            query("B", _by_card("train_gpu_clock_hertz", 'domain="memory"'), f"memory, {_CARD}"),
        )
        .min(0)
        .override_by_query("B", [DASHED]),
        graph(
            "Errors of the collection",
            "Failures to read the cards, by reason; a machine without a GPU fails with driver or package.",
            "none",
            query("A", f"sum by (reason) ({increase('train_gpu_collect_failures_total')})", "{{reason}}"),
        ).min(0),
        graph(
            "Duration of the collection",
            "How long reading a rank's cards took; beside the training, once a second.",
            "s",
            query("A", f"max by (rank) ({series('train_gpu_collect_seconds')})", "rank {{rank}}"),
        ).min(0),
    ]
