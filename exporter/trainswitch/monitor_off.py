"""MonitorOff: what a loop holds when its configuration says ``enabled: false``."""

# ruff: noqa: ARG002 - everything is taken as `Monitor` takes it

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from trainswitch.config import MonitorConfig, with_guard, with_isolation
from trainswitch.errors import ActionRefused, ConfigError
from trainswitch.intervention.commands import RunState, check_run_name
from trainswitch.intervention.custom_actions import CustomActions
from trainswitch.monitor import Monitor
from trainswitch.probes.readout import Scalar
from trainswitch.probes.sampling import changed_sampling

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from trainswitch.intervention.training_state import HasStateDict

logger = logging.getLogger("trainswitch")

Batch = TypeVar("Batch")


class MonitorOff(Monitor):
    """Has all that `Monitor` has, and does only what the training itself needs: it clips, and counts steps.

    There is no endpoint, thread, file, hook or command. A setting that is not valid is still refused.
    """

    def __init__(
        self,
        *,
        run: str,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: HasStateDict | None = None,
        state: Mapping[str, HasStateDict] | None = None,
        data: HasStateDict | None = None,
        config: str | os.PathLike[str] | Mapping[str, Any] | MonitorConfig | None = None,
        step: int = 0,
        scaler: torch.amp.GradScaler | None = None,
        isolate: bool | None = None,
        guard: str | None = None,
    ) -> None:
        """Check the settings, and do nothing; see `Monitor` for the arguments.

        Raises:
            ConfigError: a setting, or the run's name, is not valid.
        """
        self.run = check_run_name(run)
        self.config = with_guard(with_isolation(self.config, isolate), guard)  # loaded in Monitor.__new__
        parts = {"model": model, "optimizer": optimizer}
        self._attached = [name for name, part in parts.items() if part is not None]
        self._sampling = self.config.sampling
        self._optimizer = optimizer
        self._custom = CustomActions()
        self._step = step
        logger.info("run %s is not watched: its configuration says enabled: false", run)

    @property
    def url(self) -> None:
        """None: nothing is served."""

    @property
    def guarded(self) -> bool:
        """False: nothing is guarded."""
        return False

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of `loader`."""
        yield from loader

    def micro_step(self, loss: Scalar) -> None:
        """Do nothing."""

    def clip_grad_norm_(
        self, max_norm: float, parameters: Iterable[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Call ``torch.nn.utils.clip_grad_norm_``; see `Monitor.clip_grad_norm_` for the arguments.

        Raises:
            ConfigError: no optimizer was attached.
        """
        import torch

        if self._optimizer is None:
            raise ConfigError("clip_grad_norm_() needs the optimizer: pass it to attach().")
        if parameters is None:
            parameters = [
                parameter for group in self._optimizer.param_groups for parameter in group["params"]
            ]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def set_sampling(self, **intervals: int) -> None:
        """Refuse what `Monitor.set_sampling` refuses."""
        self._sampling = changed_sampling(self._sampling, intervals, self._attached)

    def register_action(
        self, name: str, handler: Callable[[Any], str | None], params: type[BaseModel] | None = None
    ) -> None:
        """Refuse what `Monitor.register_action` refuses; no command reaches the run."""
        self._custom.register(name, handler, params)

    def step(
        self,
        loss: Scalar = None,
        *,
        grad_norm: Scalar = None,
        samples: float = 0,
        tokens: float = 0,
        epoch: float | None = None,
        loss_scale: float | None = None,
        skipped: str | None = None,
    ) -> None:
        """Count the step; nothing else is done with it."""
        self._step += 1

    def restore(self, step: int | None = None) -> int | None:
        """Return None where the run has no checkpoint.

        Raises:
            ActionRefused: it has one. A run must not begin anew because nobody watches it.
        """
        folder = self.config.checkpoint.folder / self.run
        if step is None and not any(folder.glob("step-*")):
            return None
        raise ActionRefused(
            f"restore() needs the monitor, which is off, to load a checkpoint from {folder}: set enabled "
            "(monitor_on) to true, or load one in the training script and pass step= to attach()."
        )

    @property
    def should_stop(self) -> bool:
        """False: no command reaches the run."""
        return False

    @property
    def current_step(self) -> int:
        """Number of the last step."""
        return self._step

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Do nothing."""
        yield

    def evaluate(self, **metrics: Scalar) -> None:
        """Do nothing."""

    def close(self, state: RunState | None = None) -> None:
        """Do nothing."""
