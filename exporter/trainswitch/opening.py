"""What a monitor consists of: each part opened from the settings, what was attached, and the environment.

Only a part of torch imports torch.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trainswitch.config import MonitorConfig
from trainswitch.errors import ConfigError, RingError, ServerError
from trainswitch.intervention.state_actions import DATA_PART
from trainswitch.metrics.endpoint import Endpoint
from trainswitch.metrics.isolated import IsolatedEndpoint
from trainswitch.processes import start_ticks
from trainswitch.recording.ring import StepRing
from trainswitch.version import version

if TYPE_CHECKING:
    import torch

    from trainswitch.intervention.learning_rate import LearningRateScale
    from trainswitch.intervention.training_state import HasStateDict, TrainingState
    from trainswitch.probes.collectives import Collectives
    from trainswitch.probes.layers import Append, Layers
    from trainswitch.probes.model import ModelProbes

logger = logging.getLogger("trainswitch")


def layers_of(model: torch.nn.Module | None, max_series: int) -> Layers | None:
    """Return the layers of `model`, as many as there may be series."""
    if model is None:
        return None
    from trainswitch.probes.layers import Layers

    return Layers(model, max_series)


def scale_of(optimizer: torch.optim.Optimizer | None) -> LearningRateScale | None:
    """Return the factor on the learning rates of `optimizer`.

    Raises:
        ConfigError: it is no ``torch.optim.Optimizer``.
    """
    if optimizer is None:
        return None
    from trainswitch.intervention.learning_rate import LearningRateScale

    return LearningRateScale(optimizer)


def further_state(
    scaler: torch.amp.GradScaler | None, data: HasStateDict | None, state: Mapping[str, HasStateDict] | None
) -> dict[str, HasStateDict]:
    """Return everything besides model, optimizer and scheduler that a checkpoint holds, by name.

    Raises:
        ConfigError: `state` has a name that `scaler` or `data` takes.
    """
    state = state or {}
    named: dict[str, HasStateDict] = {}
    for name, part in (("scaler", scaler), (DATA_PART, data)):
        if part is not None:
            if name in state:
                raise ConfigError(f"state has {name!r}, and so has {name}=: give that state another name.")
            named[name] = part
    return {**named, **state}


def parameter_count(config: MonitorConfig, model: torch.nn.Module | None) -> int | None:
    """Count the model's parameters, where the FLOPs of a token are estimated from them.

    Raises:
        ConfigError: they are to be estimated, and there is no model.
    """
    if not config.throughput.estimated:
        return None
    if model is None:
        raise ConfigError(
            "throughput.peak_flops has no effect without the FLOPs of the model: attach the model, or set "
            "throughput.flops_per_token or throughput.flops_per_step."
        )
    return sum(parameter.numel() for parameter in model.parameters())


def rank_in_environment() -> tuple[int, int, int]:
    """Return rank, world size and local rank, as torchrun sets them.

    Raises:
        ConfigError: one of them is not a whole number.
    """
    numbers = []
    for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0)):
        text = os.environ.get(name, str(default))
        if not text.isdecimal():
            raise ConfigError(
                f"environment variable {name} is {text!r}: set it to a whole number or unset it."
            )
        numbers.append(int(text))
    return numbers[0], numbers[1], numbers[2]


def open_ring(
    config: MonitorConfig,
    *,
    run: str,
    rank: int,
    node: str,
    world_size: int,
    local_rank: int,
    framework: str,
    parameters: int | None,
    layers: Layers | None,
    step: int,
) -> StepRing:
    """Return the ring of a run that begins at `step`, in private memory where there is no room to share."""
    meta = {
        "run": run,
        "rank": rank,
        "node": node,
        "framework": framework,
        "world_size": world_size,
        "started_at": time.time(),
        "step": step,
        "pid": os.getpid(),
        "pid_started": start_ticks(os.getpid()),
        "local_rank": local_rank,
        "parameters": parameters,
        "layers": layers.names if layers is not None else (),
        "activations": layers.activation_names if layers is not None else (),
        "config": config.model_dump(mode="json"),
    }
    try:
        return StepRing.create(meta, config.ring_records)
    except RingError as error:
        logger.warning("%s Going on in private memory: no black box outlives this process.", error)
        if config.isolate:
            logger.warning("isolate needs shared memory: a thread of the trainer serves the metrics.")
        return StepRing.private(meta, config.ring_records)


def open_probes(
    config: MonitorConfig,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    *,
    layers: Layers | None,
    scaler: torch.amp.GradScaler | None,
    rank: int,
    step: int,
    append: Append,
) -> ModelProbes | None:
    """Return what measures the model; None where nothing of torch was attached."""
    if model is None and optimizer is None and scaler is None:
        return None
    from trainswitch.probes.model import ModelProbes

    return ModelProbes(
        model,
        optimizer,
        layers=layers,
        sampling=config.sampling,
        settings=config.layers,
        rank=rank,
        step=step,
        append=append,
        scaler=scaler,
    )


def open_training(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    scheduler: HasStateDict | None,
    state: Mapping[str, HasStateDict],
    *,
    rank: int,
    world_size: int,
) -> TrainingState | None:
    """Return the state that checkpoints hold; None where this process has nothing to save."""
    nothing = model is None and optimizer is None and scheduler is None and not state
    if nothing or (world_size == 1 and rank != 0):
        return None
    from trainswitch.intervention.training_state import TrainingState

    return TrainingState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        extra=state,
        own=frozenset(state) - {"scaler"} if rank > 0 else None,
        ranks=world_size,
    )


def open_endpoint(
    ring: StepRing, local_rank: int, *, on_restart: Callable[[], None]
) -> Endpoint | IsolatedEndpoint:
    """Return what serves the ring's records; see `IsolatedEndpoint` for `on_restart`.

    Raises:
        ServerError: the token or the certificate cannot be used; the ring is then closed.
    """
    try:
        if ring.path is not None and ring.meta["config"]["isolate"]:
            return IsolatedEndpoint(ring, local_rank, version(), on_restart=on_restart)
        return Endpoint(ring.reader(), local_rank, version())
    except ServerError:
        ring.close()
        raise


def watch_collectives(world_size: int, append: Append, step: Callable[[], int]) -> Collectives | None:
    """Begin to time the collectives of torch.distributed, where there can be any."""
    distributed = sys.modules.get("torch.distributed")
    if world_size == 1 or distributed is None or not distributed.is_available():
        return None
    from trainswitch.probes.collectives import Collectives

    return Collectives(append, step)
