"""ModelProbes: everything that is measured of a model and its optimizer, and when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from math import isfinite
from typing import Any

import torch

from trainswitch.config import LayersConfig, SamplingConfig
from trainswitch.errors import ConfigError
from trainswitch.probes.activations import ActivationProbe, is_compiled
from trainswitch.probes.checksums import join, weight_checksum
from trainswitch.probes.closures import after_closure
from trainswitch.probes.gradients import GradientNorm
from trainswitch.probes.layers import Append, Layers, append_layers, combine
from trainswitch.probes.loss_scale import LossScale
from trainswitch.probes.memory import DeviceMemory, cuda_device
from trainswitch.probes.norms import local_part, share
from trainswitch.probes.readout import VectorReadout
from trainswitch.probes.weights import WeightNorms, WeightProbe
from trainswitch.recording.records import Kind

logger = logging.getLogger("trainswitch")

Publish = Callable[[int, list[float]], None]
"""Takes the step and the values of one part of a sample."""


class ModelProbes:
    """Measures at the steps that are due, and hands what it measured to the ring when it is on the host.

    One step goes: the optimizer's pre-step hook, its post-step hook, `take`, `end_step`. Sampled vectors of
    a step reach the host together, in one copy. A probe that fails is switched off with a line in the log.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        *,
        layers: Layers | None,
        sampling: SamplingConfig,
        settings: LayersConfig,
        rank: int,
        step: int,
        append: Append,
        scaler: Any = None,
    ) -> None:
        """Hook into `optimizer`.

        Args:
            model: whose activations and weights are measured.
            optimizer: whose gradients and updates are measured.
            layers: of `model`; None without one.
            sampling: intervals.
            settings: of the layers.
            rank: of this process; see `LayersConfig.all_ranks`.
            step: number of the last step.
            append: writes a record; `StepRing.append`.
            scaler: ``torch.amp.GradScaler`` of the run.

        Raises:
            ConfigError: `scaler` is not a GradScaler, or comes without an optimizer.
        """
        if scaler is not None and optimizer is None:
            raise ConfigError("scaler= needs the optimizer that it steps: pass it to attach(), too.")
        self._append = append
        self._model = model
        self._layers = layers if rank == 0 or settings.all_ranks else None
        self.sampling = sampling
        self._optimizer = optimizer
        self._loss_scale = LossScale(scaler) if scaler is not None else None
        self._gradients = GradientNorm(optimizer) if optimizer is not None else None
        self._weights: WeightProbe | None = None
        self._activations: ActivationProbe | None = None
        self._memory = self._watch_memory()
        self._readout = VectorReadout(self._publish)
        self._broken: set[str] = set()
        if self._layers is not None and model is not None:
            self._activations = self._watch_activations(model, self._layers)
            if self._gradients is not None:
                self._weights = self._watch_weights(self._gradients, settings.update_copy_parameters)
        self._hooks = []
        if optimizer is not None:
            self._hooks = [
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            ]
        self._plan(step + 1)

    @property
    def sampling(self) -> SamplingConfig:
        """Intervals; a change holds from the step after the next `end_step`."""
        return self._sampling

    @sampling.setter
    def sampling(self, sampling: SamplingConfig) -> None:
        self._sampling = sampling
        layers, model = self._layers is not None, self._model is not None
        self._intervals = (
            sampling.grad_norm,
            sampling.layers * layers,
            sampling.weights * layers,
            sampling.activations * layers,
            sampling.checksum * model,
        )

    def _watch_activations(self, model: torch.nn.Module, layers: Layers) -> ActivationProbe | None:
        if any(is_compiled(module) for module in model.modules()):
            if self.sampling.activations:
                logger.info("activations are not measured: a compiled model does not call hooks.")
            return None
        return ActivationProbe(layers.activations, layers.modules, len(layers.activation_names))

    def _watch_weights(self, gradients: GradientNorm, copy_parameters: int) -> WeightProbe:
        size = sum(local_part(parameter).numel() for parameter in gradients.parameters())
        copies = size <= copy_parameters
        if not copies and self.sampling.weights:
            logger.warning(
                "update ratios are not measured: they need a copy of %d parameters, and "
                "layers.update_copy_parameters is %d.",
                size,
                copy_parameters,
            )
        return WeightProbe(copies=copies)

    def _watch_memory(self) -> DeviceMemory | None:
        parameters = list(self._gradients.parameters()) if self._gradients is not None else []
        if self._model is not None:
            parameters += self._model.parameters()
        device = cuda_device(parameters)
        return DeviceMemory(device, self._append) if device is not None else None

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────

    def clip(self, parameters: Iterable[torch.Tensor] | None, max_norm: float) -> torch.Tensor:
        """Clip and measure; see `GradientNorm.clip`.

        Raises:
            ConfigError: there is no optimizer.
        """
        if self._gradients is None:
            raise ConfigError("clip_grad_norm_() needs the optimizer: pass it to attach().")
        return self._gradients.clip(parameters, max_norm)

    def limit(self, max_norm: float | None) -> None:
        """Clip all gradients to `max_norm` from the next step on; None ends it."""
        if self._gradients is not None:
            self._gradients.max_norm = max_norm

    def clip_obstacle(self) -> str:
        """Return why `limit` cannot have an effect; empty where it can."""
        if self._gradients is None:
            return "this run has no optimizer whose gradients could be clipped: attach one."
        if "gradients" in self._broken:
            return "the gradients could not be measured, as the log says, so they cannot be clipped."
        modules = self._model.modules() if self._model is not None else ()
        if any(type(module).__name__ == "FullyShardedDataParallel" for module in modules):
            return (
                "the gradients of FullyShardedDataParallel are spread over the ranks in a way that only its "
                "own clip_grad_norm_ knows: use fully_shard, or clip in the training script."
            )
        return ""

    def take(self) -> tuple[torch.Tensor | None, float | None]:
        """Return this step's global gradient norm and the limit it was clipped to."""
        return self._gradients.take() if self._gradients is not None else (None, None)

    def check(self) -> torch.Tensor | None:
        """Tell whether the gradients are finite; see `GradientNorm.check`."""
        return self._gradients.check() if self._gradients is not None else None

    @staticmethod
    def share(norm: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of a norm that is a DTensor."""
        return share(norm)

    def take_loss_scale(self) -> tuple[Any, ...]:
        """Return what `LossScale.take` does; empty without a scaler."""
        return self._loss_scale.take() if self._loss_scale is not None else ()

    def observe(self, norm: float | None) -> None:
        """Take a norm that has reached the host and was not clipped here."""
        if self._gradients is not None:
            self._gradients.observe(norm)

    def end_step(self, step: int) -> None:
        """Collect what was sampled in step number `step`, and prepare the next one."""
        if self._sampled:
            self._submit(step, self._collect())
        elif self._readout.waiting:
            self._readout.poll()
        if self._memory is not None and "memory" not in self._broken:
            self._try("memory", partial(self._memory.end_step, step))
        self._plan(step + 1)

    def flush(self) -> None:
        """Wait for what is on its way to the host; for the end of a run."""
        self._readout.flush()

    def detach(self) -> None:
        """Leave model and optimizer as they were."""
        for hook in self._hooks:
            hook.remove()
        if self._activations is not None:
            self._activations.disarm()

    def _plan(self, step: int) -> None:
        """Decide what step number `step` measures; most steps nothing but the global norm."""
        norm, layers, weights, activations, checksum = self._intervals
        by_layer = layers > 0 and step % layers == 0
        weighed = weights > 0 and step % weights == 0
        watched = activations > 0 and step % activations == 0
        self._summed = checksum > 0 and step % checksum == 0
        self._sampled = by_layer or weighed or watched or self._summed
        if self._gradients is not None:
            self._gradients.wanted = norm > 0 and step % norm == 0
            self._gradients.per_parameter = by_layer
        if self._weights is not None:
            self._weights.wanted = weighed
        if watched and self._activations is not None:
            self._activations.arm()

    def _before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._loss_scale is not None:
            self._loss_scale.before_step(optimizer)
        if self._gradients is None:
            return None
        if self._weights is not None and self._weights.wanted and "weights" not in self._broken:
            self._try("weights", partial(self._weights.before_step, self._gradients.parameters()))
        return after_closure(args, kwargs, self._measure_gradients)

    def _measure_gradients(self) -> None:
        if self._gradients is not None and "gradients" not in self._broken:
            self._try("gradients", self._gradients.before_step)

    def _after_step(self, *_: Any) -> None:
        if self._weights is not None and self._weights.wanted and "weights" not in self._broken:
            self._try("weights", self._weights.after_step)

    def _try(self, probe: str, measure: Callable[[], None]) -> None:
        """Measure, and keep a failure out of the optimizer's step."""
        try:
            measure()
        except Exception as error:  # noqa: BLE001 - the monitor's own trouble never ends a training
            self._broken.add(probe)
            if probe == "gradients" and self._gradients is not None and self._gradients.max_norm is not None:
                logger.warning("gradients are not clipped by command any more.")
            logger.warning("%s are not measured any more: %s: %s", probe, type(error).__name__, error)

    # ── from the device to the ring ───────────────────────────────────────────────────────────────────

    def _collect(self) -> list[tuple[Publish, torch.Tensor]]:
        parts: list[tuple[Publish, torch.Tensor]] = []
        layers = self._layers
        if layers is not None:
            if self._gradients is not None:
                gradients = self._gradients.take_vector()
                if gradients is not None:
                    index = layers.index(gradients[0])
                    parts.append((partial(self._publish_gradients, index), gradients[1]))
            weights = self._weights.take() if self._weights is not None else None
            if weights is not None:
                parts.append(self._weight_part(layers, weights))
            seen = self._activations.take() if self._activations is not None else None
            if seen is not None:
                parts.append((partial(self._publish_activations, seen[0]), seen[1]))
        if self._summed and self._model is not None:
            checksum = weight_checksum(self._model.parameters())
            if checksum is not None:
                parts.append((self._publish_checksum, checksum))
        return parts

    def _weight_part(self, layers: Layers, norms: WeightNorms) -> tuple[Publish, torch.Tensor]:
        vector = norms.weights
        if norms.updates is not None:
            vector = torch.cat([vector, norms.updates])
        return partial(self._publish_weights, layers.index(norms.parameters)), vector

    def _submit(self, step: int, parts: list[tuple[Publish, torch.Tensor]]) -> None:
        if not parts:  # no forward pass, no gradient
            return
        device = parts[0][1].device
        vectors = [vector.to(device, non_blocking=True) for _, vector in parts]
        item = step, [(publish, len(vector)) for publish, vector in parts]
        self._readout.submit(item, vectors[0] if len(vectors) == 1 else torch.cat(vectors))

    def _publish(self, item: tuple[int, list[tuple[Publish, int]]], values: list[float]) -> None:
        step, parts = item
        start = 0
        for publish, length in parts:
            publish(step, values[start : start + length])
            start += length

    def _publish_gradients(self, index: list[int], step: int, values: list[float]) -> None:
        assert self._layers is not None
        append_layers(self._append, step, "grad_norm", combine(values, index, len(self._layers.names)))

    def _publish_weights(self, index: list[int], step: int, values: list[float]) -> None:
        assert self._layers is not None
        count = len(self._layers.names)
        weights = combine(values[: len(index)], index, count)
        append_layers(self._append, step, "weight_norm", weights)
        if any(norm is not None and not isfinite(norm) for norm in weights):
            self._append(Kind.NONFINITE, step, label="weight")
        if len(values) > len(index):
            updates = combine(values[len(index) :], index, count)
            # A layer whose weights are all zero has no ratio.
            ratios = [u / w if u is not None and w else None for u, w in zip(updates, weights, strict=True)]
            append_layers(self._append, step, "update_ratio", ratios)

    def _publish_activations(self, seen: list[int], step: int, values: list[float]) -> None:
        assert self._layers is not None
        ratios: list[float | None] = [None] * len(self._layers.activation_names)
        for layer, value in zip(seen, values[1:], strict=True):
            ratios[layer] = value
        append_layers(self._append, step, "inactive_ratio", ratios)
        if values[0]:
            self._append(Kind.NONFINITE, step, label="activation")

    def _publish_checksum(self, step: int, values: list[float]) -> None:
        self._append(Kind.CHECKSUM, step, (join(values),))
