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

EVERY_STEP = {"grad_norm": 1, "layers": 1, "weights": 0, "activations": 0, "checksum": 0}
"""Settings of ``sampling`` for a step whose gradient norms are read, and nothing else."""
EVERY_TENTH = {"grad_norm": 10, "layers": 10, "weights": 0, "activations": 0, "checksum": 0}
"""The same every tenth step, for what such a run costs in the background."""
NO_STEP = {"grad_norm": 0, "layers": 0, "weights": 0, "activations": 0, "checksum": 0}
"""The same for a step without any sample."""
EVERYTHING = {"grad_norm": 1, "layers": 1, "weights": 1, "activations": 1, "checksum": 1}
"""All signals at every step: nobody's setting, but one sample of each, whose share is then added."""
RARE_SHARE = 1 / 100
"""Share of the steps that sample weights and activations where gradients are read at every step, as by
default; the weights' checksum, ten times rarer, is counted as often."""
