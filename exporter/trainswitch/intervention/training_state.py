"""Everything that a training run needs to go on from a step, captured and restored as one thing."""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from trainswitch.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

RESERVED_NAMES = ("meta", "rng", "model", "optimizer", "scheduler", "trainswitch")
"""Names that a further state cannot have; the first five are keys of a checkpoint."""

EXTRA_STATE_KEY = "_extra_state"
"""Suffix under which ``torch.nn.Module.state_dict`` files what ``get_extra_state`` returned."""

PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})


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
    """

    def __init__(
        self,
        *,
        model: HasStateDict | None = None,
        optimizer: HasStateDict | None = None,
        scheduler: HasStateDict | None = None,
        extra: Mapping[str, HasStateDict] = MappingProxyType({}),
        own: frozenset[str] | None = None,
    ) -> None:
        """Collect the parts; those that are None are left out.

        Args:
            model: its ``state_dict()`` is saved and loaded, as are those of the others.
            optimizer: likewise.
            scheduler: likewise.
            extra: further parts by name.
            own: names of the parts that `capture` takes; by default all. A rank that holds the same model as
                rank 0 saves only what is its own.

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
        self._captured = [name for name in self._parts if own is None or name in own]
        for name, part in self._parts.items():
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(part, method, None)):
                    raise ConfigError(
                        f"state {name!r} is a {_type_name(part)} without {method}(): "
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
        return {
            "meta": _host_copy(meta, "meta"),
            "rng": _host_copy(rng_state(), "rng"),
            **{name: self._copy_part(name) for name in self._captured},
        }

    def restore(self, captured: dict[str, Any]) -> dict[str, Any]:
        """Put a captured state back into the live objects, all of it or nothing, and return its ``meta``.

        Parts, keys, shapes and dtypes are compared first. What is then overwritten has been copied before,
        and is put back if a ``load_state_dict()`` fails all the same; that copy is the price in host memory.
        Values return to the devices their live counterparts are on; hyperparameters that are tensors
        (a learning rate on the device) are filled in place. The generators come last. `captured` stays as
        it is and can be restored again.

        Raises:
            CheckpointError: (``state``) `captured` does not fit the live objects, or could not be loaded; the
                message names the part and says whether anything was changed.
        """
        self.check(captured)
        before = {"rng": rng_state(), **{name: self._copy_part(name) for name in self._parts}}
        touched: list[str] = []
        part = "rng"
        try:
            for part in self._parts:
                touched.append(part)
                self._load(part, captured[part])
            part = "rng"
            _set_rng_state(captured["rng"])
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
        return dict(_host_copy(captured["meta"], "meta"))

    def _copy_part(self, name: str) -> Any:
        try:
            state = self._parts[name].state_dict()
        except Exception as error:
            raise CheckpointError(
                "state", f"state {name!r} cannot be captured: its state_dict() failed with {error!r}."
            ) from error
        return _host_copy(state, name)

    def _load(self, name: str, state: dict[str, Any]) -> None:
        import torch

        part = self._parts[name]
        if isinstance(part, torch.nn.Module):
            part.load_state_dict(state)
        elif isinstance(part, torch.optim.Optimizer):
            _load_optimizer(part, _host_copy(state, name))
        else:
            # A copy, because whoever loads a dict may keep it and write to its tensors.
            part.load_state_dict(_host_copy(state, name))

    def _put_back(self, before: dict[str, Any], touched: Iterable[str]) -> list[str]:
        """Undo a restore that failed; return the parts that could not be undone."""
        stuck = []
        for name in touched:
            try:
                self._load(name, before[name])
            except Exception:  # noqa: BLE001 - reported by name; the other parts must be put back
                stuck.append(name)
        _set_rng_state(before["rng"])
        return stuck

    def sharded(self) -> str | None:
        """Return the name of a parameter or module that is spread over several ranks; None where none is."""
        import torch

        model = self._parts.get("model")
        if not isinstance(model, torch.nn.Module):
            return None
        for name, module in model.named_modules():
            if type(module).__name__ == "FullyShardedDataParallel":
                return f"module {name or 'model'!r}"
        for name, parameter in model.named_parameters():
            if hasattr(parameter, "placements"):  # a DTensor
                return f"parameter {name!r}"
        return None

    def check(self, captured: Any) -> None:
        """Compare a captured state with the live objects; nothing is changed.

        Raises:
            CheckpointError: (``state``) it does not fit them.
        """
        if not isinstance(captured, dict) or not {"meta", "rng"} <= captured.keys():
            raise _mismatch("it holds no 'meta' and 'rng', so trainswitch did not write it")
        saved, live = captured.keys() - {"meta", "rng"}, self._parts.keys()
        for name in sorted(live - saved):
            raise _mismatch(f"it holds no {name!r}, which this run has")
        for name in sorted(saved - live):
            raise _mismatch(f"it holds {name!r}, which this run does not have")
        _check_rng(captured["rng"])
        for name, part in self._parts.items():
            self._check_part(name, part, captured[name])

    def _check_part(self, name: str, part: HasStateDict, saved: dict[str, Any]) -> None:
        import torch

        if isinstance(part, torch.nn.Module):
            live = part.state_dict()
            _check_keys(name, live, saved)
            _check_tensors(name, live, saved)
        elif isinstance(part, torch.optim.Optimizer):
            _check_optimizer(name, part.state_dict(), saved)
        elif name == "scheduler":
            _check_keys(name, part.state_dict(), saved)
        # Any other state may rightly change its keys and shapes over a run (a sampler's remaining indices).


def _host_copy(value: Any, where: str) -> Any:
    """Copy `value` in depth, tensors to host memory; `where` names it in the error."""
    import torch

    kind = type(value)
    if kind in (torch.Tensor, torch.nn.Parameter):
        return value.detach().to("cpu", copy=True)
    if kind in (dict, OrderedDict, Counter):
        copied = kind(
            {
                _host_copy(key, f"{where} key"): _host_copy(item, f"{where}[{key!r}]")
                for key, item in value.items()
            }
        )
        if kind is OrderedDict:  # a module's state_dict() has its version numbers as an attribute
            vars(copied).update(_host_copy(vars(value), f"{where}.__dict__"))
        return copied
    if kind in (list, tuple, set):
        if PLAIN_TYPES.issuperset(map(type, value)):  # the fast way through a million indices
            return kind(value)
        return kind(_host_copy(item, f"{where}[{index}]") for index, item in enumerate(value))
    if kind in PLAIN_TYPES or kind in (torch.Size, torch.dtype, torch.device):
        return value
    if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic):
        return value.item()  # a schedule computed with NumPy makes the learning rate one of these
    raise CheckpointError(
        "state",
        f"{where} is a {_type_name(value)}, which a checkpoint cannot hold: let state_dict() return tensors, "
        "numbers, strings and plain lists, tuples, sets or dicts of them.",
    )


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    import torch

    tensors = [
        {key: value for key, value in group.items() if isinstance(value, torch.Tensor)}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(state)
    # load_state_dict takes a tensor hyperparameter as it comes, here from host memory; a compiled or
    # graph-captured step reads the tensor it was made with.
    for group, live in zip(optimizer.param_groups, tensors, strict=True):
        for key, tensor in live.items():
            tensor.detach().copy_(torch.as_tensor(group[key]))
            group[key] = tensor


def _check_optimizer(name: str, live: dict[str, Any], saved: dict[str, Any]) -> None:
    _check_keys(name, live, saved)
    groups = live["param_groups"], saved["param_groups"]
    if len(groups[0]) != len(groups[1]):
        raise _mismatch(
            f"{name} has {len(groups[1])} parameter groups in the checkpoint and {len(groups[0])} here"
        )
    for index, (ours, theirs) in enumerate(zip(*groups, strict=True)):
        where = f"{name}['param_groups'][{index}]"
        _check_keys(where, ours, theirs)
        if len(ours["params"]) != len(theirs["params"]):
            raise _mismatch(
                f"{where} has {len(theirs['params'])} parameters in the checkpoint "
                f"and {len(ours['params'])} here"
            )
    # A fresh optimizer has no state yet, and one that never saw a parameter's gradient has none for it.
    for parameter in live["state"].keys() & saved["state"].keys():
        _check_tensors(f"{name}['state'][{parameter}]", live["state"][parameter], saved["state"][parameter])


def _check_keys(name: str, live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for key in live:
        if key not in saved:
            raise _mismatch(f"{name} has no key {key!r} in the checkpoint")
    for key in saved:
        if key not in live:
            raise _mismatch(f"{name} has a key {key!r} only in the checkpoint")


def _check_tensors(name: str, live: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    import torch

    for key in live.keys() & saved.keys():
        ours, theirs = live[key], saved[key]
        if str(key).endswith(EXTRA_STATE_KEY) or not isinstance(ours, torch.Tensor):
            continue
        if not isinstance(theirs, torch.Tensor):
            raise _mismatch(
                f"{name} key {key!r} is a {_type_name(theirs)} in the checkpoint and a tensor here"
            )
        if ours.shape != theirs.shape:
            raise _mismatch(
                f"{name} key {key!r} has shape {tuple(theirs.shape)} in the checkpoint "
                f"and {tuple(ours.shape)} here"
            )
        if ours.dtype != theirs.dtype:
            raise _mismatch(
                f"{name} key {key!r} has dtype {theirs.dtype} in the checkpoint and {ours.dtype} here"
            )


def _mismatch(difference: str) -> CheckpointError:
    return CheckpointError(
        "state",
        f"the checkpoint does not fit this run: {difference}; nothing was changed: "
        "choose a checkpoint of the same model, optimizer, scheduler and state.",
    )


def rng_state() -> dict[str, Any]:
    """Return the state of every random-number generator of this process."""
    import torch

    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": []}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # asking an unused CUDA would start it
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        numpy = dict(sys.modules["numpy"].random.get_state(legacy=False))
        numpy["state"] = {
            key: getattr(item, "tolist", lambda item=item: item)() for key, item in numpy["state"].items()
        }
        state["numpy"] = numpy
    return state


def _check_rng(saved: Any) -> None:
    import torch

    if not isinstance(saved, dict) or not {"python", "torch", "cuda"} <= saved.keys():
        raise _mismatch("its rng is not what trainswitch writes")
    if (there := len(saved["cuda"])) > (here := torch.cuda.device_count()):
        raise _mismatch(f"rng is of {there} CUDA devices and this process sees {here}")


def _set_rng_state(saved: dict[str, Any]) -> None:
    import torch

    random.setstate(saved["python"])
    if "numpy" in saved:
        import numpy as np

        np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    for device, state in enumerate(saved["cuda"]):
        torch.cuda.set_rng_state(state, device)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
