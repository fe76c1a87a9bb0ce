"""Layers: which module's series each parameter and each activation belongs to, at most so many series."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

import torch

from trainswitch.probes.activations import is_activation
from trainswitch.recording.records import LAYERS_INLINE, Kind

OTHER = "(other)"
"""The layer that takes in everything without a series of its own; nothing is left out."""
ROOT = "(root)"

_WRAPPERS = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Parts of a module's path that a wrapper put there, and that say nothing about the model."""

Path = tuple[str, ...]
Append = Callable[..., None]
"""`StepRing.append`."""


@dataclasses.dataclass(frozen=True)
class Fold:
    """Paths folded to layers."""

    names: tuple[str, ...]
    """At most the wanted number besides `OTHER`, which is always the last."""
    index: tuple[int, ...]
    """For each path that was folded, its layer."""


def path_of(name: str) -> Path:
    """Return the parts of a module's name, without those of wrappers (DDP, FSDP, torch.compile)."""
    parts = [part for part in name.split(".") if part and part not in _WRAPPERS]
    if parts[:1] == ["module"]:
        del parts[0]
    return tuple(parts) or (ROOT,)


def choose_depth(paths: Sequence[Path], sizes: Sequence[int], max_series: int) -> int:
    """Return how many parts of each path name its layer.

    It is the cut that tells the most layers apart, at most `max_series`; but never one above the model's
    blocks: where there are more blocks than series, the largest have one each (see `fold`) rather than all
    one together.

    Args:
        paths: of the modules that hold parameters.
        sizes: number of parameters of each.
        max_series: layers at most.
    """
    depths = range(1, max((len(path) for path in paths), default=1) + 1)
    counts = {depth: len({path[:depth] for path in paths}) for depth in depths}
    fitting = max(depths, key=lambda depth: (counts[depth] * (counts[depth] <= max_series), -depth))
    for depth in depths:
        inside = sum(
            size
            for path, size in zip(paths, sizes, strict=True)
            if any(part.isdecimal() for part in path[:depth])
        )
        if 2 * inside >= sum(sizes) > 0:  # most of the model is in numbered blocks, and they are told apart
            return max(fitting, depth)
    return fitting


def fold(paths: Sequence[Path], sizes: Sequence[int], depth: int, max_series: int) -> Fold:
    """Cut each path at `depth`; beyond `max_series` names the smallest, then the last, become `OTHER`."""
    total: dict[str, int] = {}
    for path, size in zip(paths, sizes, strict=True):
        name = ".".join(path[:depth])
        total[name] = total.get(name, 0) + size
    kept = list(total)
    if len(kept) > max_series:
        largest = sorted(kept, key=lambda name: -total[name])[: max_series - 1]
        kept = [name for name in kept if name in set(largest)]
    names = (*kept, OTHER)
    position = {name: index for index, name in enumerate(kept)}
    index = tuple(position.get(".".join(path[:depth]), len(kept)) for path in paths)
    return Fold(names, index)


class Layers:
    """The layers of one model: fixed when it is attached, named once in the ring's description."""

    def __init__(self, model: torch.nn.Module, max_series: int) -> None:
        """Fold the parameters and the activation modules of `model`."""
        named = list(model.named_parameters())
        paths = [_module_path(name) for name, _ in named]
        sizes = [parameter.numel() for _, parameter in named]
        depth = choose_depth(paths, sizes, max_series)
        folded = fold(paths, sizes, depth, max_series)
        self.names = folded.names
        """Layers of the gradients and weights."""
        self._index = {id(parameter): i for (_, parameter), i in zip(named, folded.index, strict=True)}
        activations = [(path_of(name), m) for name, m in model.named_modules() if is_activation(m)]
        folded = fold([path for path, _ in activations], [1] * len(activations), depth, max_series)
        self.activation_names = folded.names
        """Layers of the activations: cut at the same depth, so they share names where they share modules."""
        self.activations = [(m, i) for (_, m), i in zip(activations, folded.index, strict=True)]
        """Activation modules, and the layer of each."""
        wanted = set(self.names)
        self.modules = [m for name, m in model.named_modules() if ".".join(path_of(name)) in wanted]
        """Modules that are layers by themselves: what they return is the activation at their end."""

    def index(self, parameters: Iterable[torch.Tensor]) -> list[int]:
        """Return the layer of each parameter; `OTHER` for one that the model did not have."""
        other = len(self.names) - 1
        return [self._index.get(id(parameter), other) for parameter in parameters]


def _module_path(parameter: str) -> Path:
    """Return the path of the module that holds a parameter; the root's own are layers by themselves."""
    module, _, _ = parameter.rpartition(".")
    return path_of(module or parameter)


def combine(norms: Sequence[float], index: Sequence[int], layers: int) -> list[float | None]:
    """Return the norm of each layer from those of its parameters; None for a layer without any.

    The squares are added up in double precision, so that the layers' squares sum to the parameters'.
    """
    squares: list[float | None] = [None] * layers
    for norm, layer in zip(norms, index, strict=True):
        squares[layer] = (squares[layer] or 0.0) + norm * norm
    return [None if square is None else math.sqrt(square) for square in squares]


def append_layers(append: Append, step: int, signal: str, values: Sequence[float | None]) -> None:
    """Write `values`, one a layer, as records of `Kind.LAYERS`; None leaves a layer's last value as it is."""
    for first in range(0, len(values), LAYERS_INLINE):
        part = values[first : first + LAYERS_INLINE]
        present = 1
        for position, value in enumerate(part, 1):
            present |= (value is not None) << position
        if present > 1:
            numbers = (float(first), *(0.0 if value is None else value for value in part))
            append(Kind.LAYERS, step, numbers, present=present, label=signal)
