"""Records for sinks, made the way the training loop makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainswitch.config import MonitorConfig
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.recording.records import Kind, Record
from trainswitch.recording.ring import StepRing
from trainswitch.recording.steps import Step, StepRecorder


def write_step(
    ring: StepRing, number: int, loss: float | None, norm: float | None = None, **other: Any
) -> None:
    """Write one step into `ring`."""
    fields: dict[str, Any] = {
        "number": number,
        "ended_at": 1000.0 + number,
        "seconds": 0.5,
        "data_wait": 0.25,
        "samples": 2.0,
        "tokens": 64.0,
        "epoch": None,
        "loss_scale": None,
        "skipped": "",
        "clipped_at": None,
        "rates": [0.1],
        "overhead": 0.0,
        **other,
    }
    StepRecorder(ring, lambda _: None).write(Step(**fields), loss, norm)


def new_ring(rank: int = 0, **sinks: Any) -> StepRing:
    """Return a private ring of run ``r`` whose configuration has these sinks."""
    config = MonitorConfig.model_validate({"sinks": sinks})
    meta = {
        "run": "r",
        "rank": rank,
        "node": "n",
        "framework": "none",
        "world_size": 4,
        "started_at": 5.0,
        "config": config.model_dump(mode="json"),
    }
    return StepRing.private(meta, 4096)


def new_aggregator(rank: int = 0, **sinks: Any) -> tuple[StepRing, Aggregator]:
    """Return a ring and the aggregator that reads it."""
    ring = new_ring(rank, **sinks)
    return ring, Aggregator(ring.reader(), "1.2.3")


def step_record(number: int, loss: float | None = 2.0, norm: float | None = 1.0, **other: Any) -> Record:
    """Return the record of one step."""
    ring = new_ring()
    write_step(ring, number, loss, norm, **other)
    return ring.reader().drain()[0]


def evaluation_record(step: int, name: str, value: float) -> Record:
    """Return the record of one metric of an evaluation."""
    ring = new_ring()
    ring.append(Kind.EVALUATION, step, (value,), label=name, at=1000.0 + step)
    return ring.reader().drain()[0]


def parts_of(folder: Path) -> list[Path]:
    """Return the files of run ``r`` and rank 0 below `folder`, oldest first."""
    return sorted((folder / "r" / "rank-0").iterdir())
