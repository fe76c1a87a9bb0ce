"""Faults that poison the example's training at a chosen step, as real ones do."""

from __future__ import annotations

import contextlib
import json
import pathlib
import time
from collections.abc import Iterator

import torch

FAULTS = ("none", "nan-batch", "lr-explosion")


class Fault:
    """One fault of one run; it happens once."""

    def __init__(
        self,
        kind: str,
        step: int,
        model: torch.nn.Module,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        events: pathlib.Path | None,
    ) -> None:
        """Prepare fault `kind` at `step`; the time when that step ended goes to the file `events`."""
        self._kind = kind
        self._step = step
        self._model = model
        self._scheduler = scheduler
        self._events = events

    @contextlib.contextmanager
    def at(self, number: int) -> Iterator[None]:
        """Surround the forward pass, backward pass and update of step `number`."""
        if self._kind == "none" or number != self._step:
            yield
        elif self._kind == "nan-batch":
            with self._corrupt_sample():
                yield
            self._note()
        else:
            self._raise_learning_rate()
            yield
            self._note()

    @contextlib.contextmanager
    def _corrupt_sample(self) -> Iterator[None]:
        """Make one activation NaN, as a corrupt sample would: so the loss is NaN, and every gradient."""

        def corrupt(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
            mask = torch.zeros_like(output)
            mask.view(-1)[0] = torch.nan
            return output + mask

        handle = self._model.get_submodule("norm").register_forward_hook(corrupt)
        try:
            yield
        finally:
            handle.remove()

    def _raise_learning_rate(self) -> None:
        """Make the rate five hundred times too high from here on, as a typo in a schedule would."""
        self._scheduler.base_lrs = [rate * 500.0 for rate in self._scheduler.base_lrs]
        for group in self._scheduler.optimizer.param_groups:
            group["lr"] *= 500.0

    def _note(self) -> None:
        if self._events is not None:
            event = {"fault": self._kind, "step": self._step, "at": time.time()}
            self._events.write_text(json.dumps(event), encoding="utf-8")
