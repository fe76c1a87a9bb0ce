"""Voice and Page: a synthetic rank whose page the real aggregator renders, on behalf of many."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.scale import hardware
from trainswitch.config import MonitorConfig
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.recording.records import LAYER_SIGNALS, LAYERS_INLINE, Kind
from trainswitch.recording.ring import StepRing
from trainswitch.recording.steps import Step, StepRecorder
from trainswitch.version import version

STEP_SECONDS = 1.0
RANKS_ON_A_MACHINE = 8
LAYERS = 48
"""Series per layer signal; only the first rank of a run has them, as by default."""
_RUN, _RANK, _NODE = "@run@", "@rank@", "@node@"
_CARD = f"GPU-{_RUN}-{_RANK}"
_WARMUP_STEPS = 500
_EVALUATION_STEPS = 100
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_MEMORY = tuple(share * 80 * 1024.0**3 for share in (0.6, 0.75, 0.7, 1.0))
"""Bytes on the device, in the order of `MEMORY_KINDS`."""
_RING_RECORDS = 32768
_CONFIG = {
    "statistics": {"warmup_steps": _WARMUP_STEPS // 2},
    # With limits of their own, the rules that compare with limits have something to do, too.
    "limits": [
        {"signal": "grad_norm", "severity": "warning", "value": 50.0},
        {"signal": "grad_norm", "severity": "critical", "value": 100.0},
        {"signal": "loss", "severity": "critical", "value": 20.0},
    ],
    "ring_records": _RING_RECORDS,
}


class Voice:
    """One rank of a healthy run, stepping once in `STEP_SECONDS`; its page can be had in any rank's name."""

    def __init__(self, *, local_rank: int, first: bool, world_size: int, now: float) -> None:
        """Live through the warm-up, which ends now.

        Args:
            local_rank: on its machine; decides which card it has.
            first: whether it is rank 0 of its run, which measures layers and writes checkpoints.
            world_size: ranks of the run.
            now: Unix seconds.
        """
        self._first = first
        self._random = random.Random(local_rank + RANKS_ON_A_MACHINE * first)  # noqa: S311 - not a secret
        names = [f"model.layers.{number}" for number in range(LAYERS)] if first else []
        meta: dict[str, Any] = {
            "run": _RUN,
            "rank": 0 if first else _RANK,
            "node": _NODE,
            "framework": "torch",
            "world_size": world_size,
            "local_rank": local_rank,
            "started_at": now - _WARMUP_STEPS * STEP_SECONDS,
            "layers": names,
            "activations": names,
            "config": MonitorConfig.model_validate(_CONFIG).model_dump(mode="json"),
        }
        self._ring = StepRing.private(meta, _RING_RECORDS)
        self._recorder = StepRecorder(self._ring, lambda _: None)
        self._aggregator = Aggregator(self._ring.reader(), version())
        self._aggregator.metrics.add_source(lambda: hardware.readings(local_rank, _CARD))
        self._step = 0
        self._ring.append(Kind.STATE, 0, label="running", at=now)
        self._ring.append(Kind.GUARD, 0, (1.0,), at=now)
        for number in range(_WARMUP_STEPS):
            self.step(now - (_WARMUP_STEPS - number) * STEP_SECONDS)
        self._aggregator.drain()

    def step(self, at: float) -> None:
        """Record one step, and what belongs to it, that ended at `at` (Unix seconds)."""
        self._step += 1
        loss, norm = self._loss(), self._random.lognormvariate(0.0, 0.2)
        step = Step(
            number=self._step,
            ended_at=at,
            seconds=STEP_SECONDS * self._random.uniform(0.99, 1.01),
            data_wait=0.01 * STEP_SECONDS,
            samples=16.0,
            tokens=32768.0,
            epoch=0.0,
            loss_scale=None,
            skipped="",
            clipped_at=None,
            rates=(3e-4 * (1.0 - 1e-7 * self._step), 3e-5 * (1.0 - 1e-7 * self._step)),
            overhead=1e-5,
        )
        self._recorder.write(step, loss, norm)
        for operation in _COLLECTIVES:
            self._ring.append(Kind.COLLECTIVE, self._step, (0.02,), label=operation, at=at)
        # Equal on all replicas, as it is where nothing is broken.
        self._ring.append(Kind.CHECKSUM, self._step, (float(self._step * 40503 % 2**32),), at=at)
        self._ring.append(Kind.MEMORY, self._step, (*_MEMORY, 0.0, 0.0), at=at)
        self._ring.append(Kind.CONTROL_READ, self._step, at=at)
        if self._step % _EVALUATION_STEPS == 0:
            self._evaluate(at)
        if self._first:
            self._measure_layers(at)

    def _loss(self) -> float:
        """Return a loss of a run that learns: one that did not would be told of."""
        return self._random.gauss(2.0 + 8.0 / (1.0 + self._step / 100), 0.05)

    def _evaluate(self, at: float) -> None:
        for metric, value in (("val_loss", self._loss()), ("val_accuracy", self._step / (self._step + 100))):
            self._ring.append(Kind.EVALUATION, self._step, (value,), label=metric, at=at)
        if self._first:
            for kind in ("latest", "stable"):
                self._ring.append(Kind.CHECKPOINT, self._step, (float(self._step), at), label=kind, at=at)
            self._ring.append(Kind.CHECKPOINT_WRITTEN, self._step, (4.0,), at=at)

    def _measure_layers(self, at: float) -> None:
        for signal in LAYER_SIGNALS:
            for first in range(0, LAYERS, LAYERS_INLINE):
                values = [self._random.uniform(0.1, 0.3) for _ in range(min(LAYERS_INLINE, LAYERS - first))]
                self._ring.append(Kind.LAYERS, self._step, (float(first), *values), label=signal, at=at)

    def render(self) -> bytes:
        """Return the page as of now, without names; see `Page`."""
        return self._aggregator.render()


class Page:
    """A voice's page in the name of one run, to be signed by each of its ranks.

    Signing happens hundreds of times a second on the cores that are measured, so that it is a join.
    """

    def __init__(self, text: bytes, run: str) -> None:
        self._run = run
        self._parts = text.replace(_RUN.encode(), run.encode()).split(_RANK.encode())

    def signed(self, rank: int) -> bytes:
        """Return the page of `rank`, which has a machine and a card of its own."""
        return str(rank).encode().join(self._parts).replace(_NODE.encode(), node(self._run, rank).encode(), 1)


def node(run: str, rank: int) -> str:
    """Return the name of the machine that a rank is on."""
    return f"{run}-node-{rank // RANKS_ON_A_MACHINE}"
