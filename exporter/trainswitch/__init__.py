"""A monitoring switch for model training: a scrape endpoint, and commands, for a loop in two lines.

switch = trainswitch.attach(model, optimizer, run="gpt2-wikitext", scheduler=scheduler)
for batch in switch.batches(loader):
    ...
    switch.step(loss)
"""

from __future__ import annotations

from trainswitch.config import (
    CheckpointConfig,
    ControlConfig,
    MonitorConfig,
    ServerConfig,
    StatisticsConfig,
)
from trainswitch.errors import TrainswitchError
from trainswitch.limits import LimitConfig, PhaseConfig
from trainswitch.monitor import Monitor, attach

__all__ = [
    "CheckpointConfig",
    "ControlConfig",
    "LimitConfig",
    "Monitor",
    "MonitorConfig",
    "PhaseConfig",
    "ServerConfig",
    "StatisticsConfig",
    "TrainswitchError",
    "attach",
]
