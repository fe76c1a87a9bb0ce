"""The bars of the overhead benchmark, and what they are measured with, in one place."""

from __future__ import annotations

HOT_PATH_US = 5.0
"""`Monitor.step` with scalars that are on the host."""
OVERHEAD = 1.01
"""Step time on ÷ off, everything on, every step."""
OVERHEAD_INTERVAL_10 = 1.003
"""Step time on ÷ off, gradients read every tenth step."""
DEVICE_SYNCS = 0.0
"""Waits for the device a step that the monitor adds."""
RENDER_SECONDS = 0.010
"""Rendering a registry of `SERIES` series."""
STALL_SECONDS = 0.005
"""Longest delay of a step by a scrape of `SERIES` series."""

SERIES = 1000

SAMPLING = {
    1: {"grad_norm": 1, "layers": 1},
    10: {"grad_norm": 10, "layers": 10, "weights": 1000, "activations": 1000, "checksum": 10_000},
}
"""Settings of ``sampling`` at each interval. What is not named here keeps its default."""
EVERYTHING = {"grad_norm": 1, "layers": 1, "weights": 1, "activations": 1, "checksum": 1}
"""All signals at every step: nobody's setting, but one sample of each, whose share is then added."""
RARE_SHARE = {1: 1 / 100, 10: 1 / 1000}
"""Share of the steps at each interval that sample weights and activations; the weights' checksum, ten times
rarer, is counted as often."""
