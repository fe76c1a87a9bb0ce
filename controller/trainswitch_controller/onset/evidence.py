"""What Prometheus answers about one run before an alert."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from trainswitch_controller.onset.signals import SignalFile
from trainswitch_controller.prometheus_api import Line, PrometheusApi

_STEPS = 'max(train_step{run="%s"})'
_RANKS = 'count(count by (rank) (train_step{run="%s"}))'
_FINE_RANKS = 64
"""So many ranks are looked at as finely as the signals say; of more, fewer points, for the same cost."""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The series of every signal that answered, between two moments."""

    start: float
    end: float
    resolution: float
    """Seconds between two points."""
    lines: Mapping[str, Sequence[Line]]
    """Signal → its series."""
    steps: Line | None
    """The run's step number; it goes back where a rollback has loaded. None where nobody knows it."""


def fetch_evidence(api: PrometheusApi, signals: SignalFile, run: str, end: float, seconds: float) -> Evidence:
    """Return what there is about `run` in the window of `signals` before `end` (Unix seconds).

    The last point is that moment itself: where it is an alert's, it sees what the rule saw.

    Args:
        api: whom to ask.
        signals: what to ask for.
        run: a valid run name.
        end: last moment of the window.
        seconds: how long all questions together may take.

    Raises:
        PrometheusUnavailable: Prometheus cannot be reached, or did not answer in time.
    """
    start = end - signals.window
    began = time.monotonic()
    ranks = api.ask({"ranks": _RANKS % run}, start=end, end=end, step=1.0, seconds=seconds).get("ranks")
    step = signals.resolution * max(1.0, ranks[0].values[-1] / _FINE_RANKS if ranks else 1.0)
    left = began + seconds - time.monotonic()
    queries = {f"signal {name}": signal.query(run) for name, signal in signals.signals.items()}
    found = api.ask({"steps": _STEPS % run, **queries}, start=start, end=end, step=step, seconds=left)
    steps = found.get("steps")
    return Evidence(
        start=start,
        end=end,
        resolution=step,
        lines={name: found[f"signal {name}"] for name in signals.signals if f"signal {name}" in found},
        steps=steps[0] if steps else None,
    )
