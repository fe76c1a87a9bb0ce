"""Everything that a training run needs to go on from a step, captured and restored as one thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from trainswitch.errors import CheckpointError, ConfigError
from trainswitch.intervention import finite, shards
from trainswitch.intervention.fit import check_state
from trainswitch.intervention.host_copy import host_copy, type_name
from trainswitch.intervention.rng import rng_state, set_rng_state

if TYPE_CHECKING:
    import torch

RESERVED_NAMES = ("meta", "rng", "model", "optimizer", "scheduler", "trainswitch")
"""Names that a further state cannot have; the first five are keys of a checkpoint."""


class HasStateDict(Protocol):
    """Anything that can be saved and loaded the PyTorch way."""

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as tensors, numbers, strings and plain containers."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Take over what `state_dict` returned."""


class TrainingState:
    """Model, optimizer, scheduler, random-number generators and further state, as one thing.

    A captured state is one flat dict: ``meta`` (the caller's), ``rng`` (of Python, NumPy where it is in use,
    PyTorch's CPU and every CUDA device), and the ``state_dict()`` of each part under the part's name. It
    holds only what ``torch.load(weights_only=True)`` accepts, so loading a checkpoint never runs code.

    Of tensors that are spread over the ranks (FSDP2's, and any DTensor) it holds this rank's shards; the meta
    then says over how many ``ranks``.
    """

    def __init__(
        self,
        *,
        model: HasStateDict | None = None,
        optimizer: HasStateDict | None = None,
        scheduler: HasStateDict | None = None,
        extra: Mapping[str, HasStateDict] = MappingProxyType({}),
        own: frozenset[str] | None = None,
        ranks: int = 1,
    ) -> None:
        """Collect the parts; those that are None are left out.

        Args:
            model: its ``state_dict()`` is saved and loaded, as are those of the others.
            optimizer: likewise.
            scheduler: likewise.
            extra: further parts by name.
            own: names of the parts that `capture` takes; by default all. A rank that holds the same model as
                rank 0 saves only what is its own. Without effect where the model is spread over the ranks.
            ranks: of the run.

        Raises:
            ConfigError: a name of `extra` is reserved, or a part has no ``state_dict``/``load_state_dict``.
        """
        for name in extra:
            if name in RESERVED_NAMES or not name:
                raise ConfigError(
                    f"state name {name!r} is not allowed: choose a name other than "
                    f"{', '.join(RESERVED_NAMES)} and the empty one."
                )
        # In the order of loading: PyTorch wants the optimizer after its scheduler.
        given = {"model": model, "scheduler": scheduler, "optimizer": optimizer, **extra}
        self._parts: dict[str, HasStateDict] = {
            name: part for name, part in given.items() if part is not None
        }
        self._own = own
        self._constants = _constants_of(model)
        self._ranks = ranks
        for name, part in self._parts.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(part, method, None)):
                    raise ConfigError(
                        f"state {name!r} is a {type_name(part)} without {method}(): "
                        "give it one, or leave it out."
                    )

    def capture(self, meta: dict[str, Any]) -> dict[str, Any]:
        """Copy everything to host memory: tensors are cloned, the rest is copied in depth.

        The copy is independent of the live objects, so another thread can write it while training goes on.
        No random number is drawn.

        Args:
            meta: what the caller wants back from `restore`; numbers, strings and plain containers.

        Raises:
            CheckpointError: (``state``) a ``state_dict()`` failed, or holds something that
                ``torch.load(weights_only=True)`` would refuse; the message names the part and the place.
        """
        if self.spread:
            meta = {**meta, "ranks": self._ranks}
        taken = [name for name in self._parts if self._own is None or self.spread or name in self._own]
        return {
            "meta": host_copy(meta, "meta"),
            "rng": host_copy(rng_state(), "rng"),
            **{name: self._copy_part(name) for name in taken},
        }

    def restore(self, captured: dict[str, Any], leave: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Put a captured state back into the live objects, all of it or nothing, and return its ``meta``.

        Parts, keys, shapes and dtypes are compared first. What is then overwritten has been copied before,
        and is put back if a ``load_state_dict()`` fails all the same; that copy is the price in host memory.
        Values return to the devices their live counterparts are on; hyperparameters that are tensors
        (a learning rate on the device) are filled in place. The generators come last. `captured` stays as
        it is and can be restored again.

        Args:
            captured: what `capture` returned, read from a file perhaps.
            leave: names of parts that stay as they are.

        Raises:
            CheckpointError: (``state``) `captured` does not fit the live objects, or could not be loaded; the
                message names the part and says whether anything was changed.
        """
        self.check(captured, leave)
        loaded = [name for name in self._parts if name not in leave]
        before = {"rng": rng_state(), **{name: self._copy_part(name) for name in loaded}}
        touched: list[str] = []
        part = "rng"
        try:
            for part in loaded:
                touched.append(part)
                self._load(part, captured[part])
            part = "rng"
            set_rng_state(captured["rng"])
        except Exception as error:
            stuck = self._put_back(before, touched)
            outcome = (
                f"{', '.join(stuck)} could not be put back, so the training state is mixed: stop the run"
                if stuck
                else "everything was put back as it was"
            )
            raise CheckpointError(
                "state",
                f"the checkpoint could not be loaded into {part!r} ({error}); {outcome}.",
            ) from error
        return dict(host_copy(captured["meta"], "meta"))

    def _copy_part(self, name: str) -> Any:
        try:
            state = self._parts[name].state_dict()
        except Exception as error:
            raise CheckpointError(
                "state", f"state {name!r} cannot be captured: its state_dict() failed with {error!r}."
            ) from error
        return host_copy(state, name)

    def _load(self, name: str, state: dict[str, Any]) -> None:
        import torch

        part = self._parts[name]
        if isinstance(part, torch.nn.Module):
            _load_module(part, state)
        elif isinstance(part, torch.optim.Optimizer):
            _load_optimizer(part, host_copy(state, name))
        else:
            # A copy, because whoever loads a dict may keep it and write to its tensors.
            part.load_state_dict(host_copy(state, name))

    def _put_back(self, before: dict[str, Any], touched: Iterable[str]) -> list[str]:
        """Undo a restore that failed; return the parts that could not be undone."""
        stuck = []
        for name in touched:
            try:
                self._load(name, before[name])
            except Exception:  # noqa: BLE001 - reported by name; the other parts must be put back
                stuck.append(name)
        set_rng_state(before["rng"])
        return stuck

    @cached_property
    def spread(self) -> bool:
        """Whether parameters are spread over the ranks, so that each holds a part of the state."""
        return any(shards.is_dtensor(parameter) for parameter in self._parameters().values())

    @cached_property
    def obstacle(self) -> str:
        """Why this state cannot be saved and loaded; empty where it can."""
        import torch

        model = self._parts.get("model")
        if isinstance(model, torch.nn.Module):
            for name, module in model.named_modules():
                if type(module).__name__ == "FullyShardedDataParallel":
                    return (
                        f"module {name or 'model'!r} is a FullyShardedDataParallel, whose state cannot be "
                        "had without collectives: use torch.distributed.fsdp.fully_shard instead."
                    )
        return ""

    def _parameters(self) -> dict[str, torch.Tensor]:
        import torch

        model = self._parts.get("model")
        return dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}

    def nonfinite(self, captured: dict[str, Any]) -> str:
        """Return where a captured state holds NaN or infinity, see `finite`; for a thread of its own."""
        return finite.nonfinite(captured, self._constants)

    def check(self, captured: Any, leave: frozenset[str] = frozenset()) -> None:
        """Compare a captured state with the live objects, but for the parts in `leave`; nothing is changed.

        Raises:
            CheckpointError: (``state``) it does not fit them.
        """
        parts = {name: part for name, part in self._parts.items() if name not in leave}
        check_state(captured, parts, self._ranks if self.spread else 1, leave)


def _constants_of(model: Any) -> frozenset[str]:
    """Return the keys of a model's state in which infinity may be normal: of buffers, and what is frozen."""
    if model is None:
        return frozenset()
    import torch

    if not isinstance(model, torch.nn.Module):
        return frozenset()
    frozen = (name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    return frozenset({*frozen, *(name for name, _ in model.named_buffers())})


def _load_module(module: torch.nn.Module, state: dict[str, Any]) -> None:
    """Load a module's state, of which shards are filled in place; nothing is communicated."""
    live = module.state_dict()
    whole = type(state)(state)
    if hasattr(state, "__dict__"):  # version numbers
        vars(whole).update(vars(state))
    for key, value in state.items():
        if shards.is_shard(value):
            shards.fill(live[key], value)
            whole[key] = live[key]
    module.load_state_dict(whole)


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    import torch

    tensors = [
        {key: value for key, value in group.items() if isinstance(value, torch.Tensor)}
        for group in optimizer.param_groups
    ]
    parameters = shards.parameters_of(optimizer, state)
    for key, values in state["state"].items():
        for name, value in values.items():
            if shards.is_shard(value):
                values[name] = shards.build(value, parameters[key])
    optimizer.load_state_dict(state)
    # load_state_dict takes a tensor hyperparameter as it comes, here from host memory; a compiled or
    # graph-captured step reads the tensor it was made with.
    for group, live in zip(optimizer.param_groups, tensors, strict=True):
        for key, tensor in live.items():
            tensor.detach().copy_(torch.as_tensor(group[key]))
            group[key] = tensor
