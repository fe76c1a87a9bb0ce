"""The reference training loop: the example's GPT with 10.7 million parameters, as a script would train it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.overhead.watchers import Watcher

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gpt import GPT, GPTConfig, TextBatches, english_text

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE = GPTConfig(layers=6, heads=6, width=384, context=128)
BATCH = 4
MAX_NORM = 1.0


class Workload:
    """Forward, backward, clipping, AdamW, cosine schedule: 512 tokens a step on the CPU, in float32."""

    def __init__(
        self, *, seed: int = 0, shape: GPTConfig = SHAPE, batch: int = BATCH, device: str = "cpu"
    ) -> None:
        """Build the model."""
        torch.manual_seed(seed)
        text, _ = english_text()
        self.model = GPT(shape).to(device)
        self._device = device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100_000)
        self._batches: Iterator[torch.Tensor] = iter(
            TextBatches(text, batch=batch, context=shape.context, seed=seed)
        )
        self._loss = torch.zeros(())
        self._tokens = 0

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def step(self, watcher: Watcher) -> float:
        """Train one step under the eyes of `watcher`, and return its seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        batch = next(self._batches).to(self._device)
        loss = self.model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        self._loss, self._tokens = loss, batch.numel()
        self.end_step(watcher)
        return time.perf_counter() - start

    def end_step(self, watcher: Watcher) -> float:
        """Do again what follows the backward pass of the last step, and return its seconds."""
        start = time.perf_counter()
        norm = watcher.clip(MAX_NORM)
        self.optimizer.step()
        self.scheduler.step()
        watcher.step(self._loss, norm, self._tokens)
        return time.perf_counter() - start
