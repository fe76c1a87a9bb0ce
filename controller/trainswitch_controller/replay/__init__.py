"""Recorded runs, played through the exporter's aggregator and a real Prometheus with the real rules."""

from trainswitch_controller.replay.engine import replay
from trainswitch_controller.replay.model import (
    Episode,
    Intervention,
    Progress,
    RecordedRun,
    ReplayedRun,
    ReplayResult,
    Row,
    Trace,
)
from trainswitch_controller.replay.rule_files import Rule, load_rules

__all__ = [
    "Episode",
    "Intervention",
    "Progress",
    "RecordedRun",
    "ReplayResult",
    "ReplayedRun",
    "Row",
    "Rule",
    "Trace",
    "load_rules",
    "replay",
]
