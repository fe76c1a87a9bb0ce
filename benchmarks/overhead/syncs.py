"""How often a step waits for the device because of the monitor."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.overhead.bars import EVERYTHING
from benchmarks.overhead.watchers import Open, monitor, nobody
from benchmarks.overhead.workload import Workload
from trainswitch.intervention import guard
from trainswitch.probes import readout

from gpt import GPTConfig  # isort: skip - the workload has put the examples on the path

STEPS = 20
_SMALL = GPTConfig(layers=2, width=32, context=32)


def added_syncs(home: Path) -> float:
    """Return device reads a step on the training thread, watched minus unwatched, everything on.

    With CUDA, PyTorch itself counts what makes the host wait (`torch.cuda.set_sync_debug_mode`). Without, all
    memory plays the device's, except for what the monitor would pin: its readout is told that every tensor is
    on a device and gets events that are reached a step late. Then each ``aten::_local_scalar_dense`` counts,
    the operation behind ``.item()``, ``float()`` and ``bool()`` of a tensor, unless it reads pinned memory.
    """
    watched = monitor(isolate=False, sampling=EVERYTHING)
    if torch.cuda.is_available():
        return (_warnings_of_cuda(watched, home) - _warnings_of_cuda(nobody, home)) / STEPS
    with _pretended_device() as pinned:
        return (_scalar_reads(watched, home, pinned) - _scalar_reads(nobody, home, pinned)) / STEPS


def _run(watch: Open, home: Path, around: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    workload = Workload(shape=_SMALL, batch=2, device="cuda" if torch.cuda.is_available() else "cpu")
    with watch(workload, home) as watcher:
        workload.step(watcher)
        with around() as seen:
            for _ in range(STEPS):
                workload.step(watcher)
    return seen


def _scalar_reads(watch: Open, home: Path, pinned: Container[int]) -> int:
    reads: _Reads = _run(watch, home, lambda: _Reads(pinned))
    return reads.count


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts reads of one number, of this thread."""

    def __init__(self, pinned: Container[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pinned = pinned
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - its name
            self.count += args[0].untyped_storage().data_ptr() not in self._pinned
        return func(*args, **(kwargs or {}))


class _LateEvent:
    """Reached at the second question, as a device is that works a step behind."""

    def __init__(self) -> None:
        self._asked = 0

    def record(self) -> None:
        self._asked = 0

    def query(self) -> bool:
        self._asked += 1
        return self._asked > 1

    def synchronize(self) -> None:
        self._asked = 1


@contextlib.contextmanager
def _pretended_device() -> Iterator[dict[int, torch.Tensor]]:
    """Have the readouts copy every tensor, and the guard see none of the host's; yields what they pin.

    That is memory by its address.
    It is kept until the end: memory that was freed would be given to other tensors, whose reads count.
    """
    pinned: dict[int, torch.Tensor] = {}

    def pin(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def pin_and_note(*args: Any) -> torch.Tensor:
            tensor = allocate(*args)
            pinned[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        return pin_and_note

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(guard, "_in_host_memory", return_value=False))
        for name, replacement in {
            "_is_cuda_tensor": lambda value: isinstance(value, torch.Tensor),
            "_cuda_event": _LateEvent,
            "_pinned": pin(readout._pinned),  # noqa: SLF001 - stands in for the device
            "_pinned_like": pin(readout._pinned_like),  # noqa: SLF001
        }.items():
            patches.enter_context(mock.patch.object(readout, name, replacement))
        yield pinned


def _warnings_of_cuda(watch: Open, home: Path) -> int:
    @contextlib.contextmanager
    def debugging() -> Iterator[list[warnings.WarningMessage]]:
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield seen
            finally:
                torch.cuda.set_sync_debug_mode(before)

    seen = _run(watch, home, debugging)
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in seen)
