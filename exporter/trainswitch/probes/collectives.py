"""Collective operations of ``torch.distributed``: how long each took, and whether one is waited for now.

No collective is added, and none is held up but by the Python calls around it. What is seen, and how:

- Every operation that Python issues through a process group: the functions of ``torch.distributed``, however
  they were imported, and what FSDP2 and other Python code builds on them. Process groups are one class, so
  its methods, and ``Work.wait``, are wrapped while a monitor is attached and restored when it detaches. An
  operation lasts from its issue until the host's wait for it returns.
- Operations that never pass through Python (the buckets of DistributedDataParallel's C++ reducer, functional
  collectives, compiled graphs) have no duration here. Once no step has passed for a while, PyTorch's own
  flight recorder is asked which are unfinished: enough to see a rank that sits in one.
- On a CUDA device, ``wait`` only orders streams and returns at once. Such an operation has no duration,
  either, because asking the device would synchronise; that it is stuck is again the flight recorder's to say.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from trainswitch.recording.records import COLLECTIVES, Kind

logger = logging.getLogger("trainswitch")

Append = Callable[..., None]
"""Writes a record; `StepRing.append`."""

_OPS = MappingProxyType(
    {
        "allreduce": "all_reduce",
        "allreduce_coalesced": "all_reduce",
        "allgather": "all_gather",
        "allgather_coalesced": "all_gather",
        "allgather_into_tensor_coalesced": "all_gather",
        "all_gather_single": "all_gather",
        "all_gather_single_coalesced": "all_gather",
        "_allgather_base": "all_gather",
        "reduce_scatter": "reduce_scatter",
        "reduce_scatter_single": "reduce_scatter",
        "reduce_scatter_single_coalesced": "reduce_scatter",
        "reduce_scatter_tensor_coalesced": "reduce_scatter",
        "_reduce_scatter_base": "reduce_scatter",
        "alltoall": "all_to_all",
        "alltoall_base": "all_to_all",
        "all_to_all_single": "all_to_all",
        "broadcast": "broadcast",
        "reduce": "reduce",
        "gather": "gather",
        "scatter": "scatter",
        "barrier": "barrier",
        "monitored_barrier": "barrier",
        "send": "send",
        "recv": "recv",
        "recv_anysource": "recv",
    }
)
"""Method of a process group → operation. Which of them there are depends on PyTorch's version."""

_LOOK_SECONDS = 0.5
_WAITING_SECONDS = 1.0
_QUIET_SECONDS = 3.0
_QUIET_STEPS = 3.0


class Collectives:
    """Watches the collective operations of this process until `detach`."""

    def __init__(self, append: Append, step: Callable[[], int]) -> None:
        """Wrap the process groups' methods.

        Args:
            append: writes a record.
            step: tells the number of the last step.
        """
        import torch.distributed as dist

        self._append = append
        self._step = step
        self._lock = threading.Lock()
        self._active = True
        self._running: dict[object, tuple[str, float]] = {}
        """Operation and Unix time of its begin, for each call that has not returned."""
        self._works: weakref.WeakKeyDictionary[Any, tuple[str, float]] = weakref.WeakKeyDictionary()
        self._reported: dict[str, float] = {}
        self._recorder = _FlightRecorder()
        self._wrapped: list[tuple[type, str, Any, Any]] = []
        for method, op in _OPS.items():
            self._wrap(dist.ProcessGroup, method, partial(self._issuing, op))
        self._wrap(dist.Work, "wait", self._waiting)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainswitch-collectives", daemon=True)
        self._thread.start()

    def detach(self) -> None:
        """Restore the methods; one that somebody has wrapped again since stays, and does nothing more."""
        self._active = False
        for owner, name, original, wrapper in self._wrapped:
            if vars(owner)[name] is wrapper:
                setattr(owner, name, original)
        self._stop.set()
        self._thread.join(timeout=5.0)

    # ── on the training thread ────────────────────────────────────────────────────────────────────────

    def _wrap(self, owner: type, name: str, make: Callable[[Any], Any]) -> None:
        original = vars(owner).get(name)  # as it is stored: getattr() would not give what can be put back
        if original is None:
            return
        wrapper = make(original)
        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name, original, wrapper))

    def _issuing(self, op: str, original: Any) -> Any:
        def issue(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active:
                return original(group, *args, **kwargs)
            began = time.time()
            with self._inside(op, began):
                work = original(group, *args, **kwargs)
            if work is None:  # it has waited already
                self._ended(op, began)
            elif op == "barrier" or _on_host(args):  # a barrier's wait holds the host on any device
                with self._lock:
                    self._works[work] = (op, began)
            return work

        return issue

    def _waiting(self, original: Any) -> Any:
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                known = self._works.get(work)
            if known is None or not self._active:
                return original(work, *args, **kwargs)
            with self._inside(*known):
                result = original(work, *args, **kwargs)
            with self._lock:
                first = self._works.pop(work, None) is not None
            if first:
                self._ended(*known)
            return result

        return wait

    @contextlib.contextmanager
    def _inside(self, op: str, began: float) -> Iterator[None]:
        """Show `op` as running while a call of it has not returned; a failed one has no duration."""
        call = object()
        self._running[call] = (op, began)
        try:
            yield
        finally:
            del self._running[call]

    def _ended(self, op: str, began: float) -> None:
        now = time.time()
        self._append(Kind.COLLECTIVE, 0, (max(0.0, now - began),), label=op, at=now)

    # ── beside it ─────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        pace = _Pace(self._step(), time.monotonic())
        unseen: dict[str, float] = {}
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                if pace.moved(self._step(), time.monotonic()):
                    unseen = {}
                elif pace.due(time.monotonic()):
                    unseen = self._recorder.unfinished()
                self._report({**unseen, **self._waiting_since()})
            except Exception:
                # Whatever else goes wrong here, what the wrapped methods see is still recorded.
                logger.exception("collectives that are waited for cannot be looked up any more")
                return
        self._report({})

    def _waiting_since(self) -> dict[str, float]:
        """Return since when each operation is waited for, where that is worth telling."""
        oldest: dict[str, float] = {}
        latest = time.time() - _WAITING_SECONDS
        for op, began in list(self._running.values()):
            if began < min(latest, oldest.get(op, latest)):
                oldest[op] = began
        return oldest

    def _report(self, unfinished: dict[str, float]) -> None:
        for op in self._reported.keys() - unfinished.keys():
            self._append(Kind.COLLECTIVE_WAITING, 0, (0.0,), label=op)
        for op, began in unfinished.items():
            if self._reported.get(op) != began:
                self._append(Kind.COLLECTIVE_WAITING, 0, (began,), label=op)
        self._reported = unfinished


class _Pace:
    """When it is worth to ask the flight recorder: no step has passed for longer than steps take."""

    def __init__(self, step: int, now: float) -> None:
        self._step = step
        self._moved_at = now
        self._patience = _QUIET_SECONDS

    def moved(self, step: int, now: float) -> bool:
        """Take note of the step's number, and return whether it changed."""
        if step == self._step:
            return False
        self._step = step
        self._patience = max(_QUIET_SECONDS, _QUIET_STEPS * (now - self._moved_at))
        self._moved_at = now
        return True

    def due(self, now: float) -> bool:
        """Whether to ask now; less and less often, because an answer takes tens of milliseconds."""
        if now - self._moved_at < self._patience:
            return False
        self._patience *= 2.0
        return True


class _FlightRecorder:
    """PyTorch's ring of the last collectives, where this build has one; private, so it may go away."""

    def __init__(self) -> None:
        binding = sys.modules.get("torch._C._distributed_c10d")
        names = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
        self._dumps = [dump for name in names if (dump := getattr(binding, name, None)) is not None]

    def unfinished(self) -> dict[str, float]:
        """Return operation → Unix time of its issue, of the oldest unfinished one each."""
        oldest: dict[str, float] = {}
        for dump in self._dumps:
            text = dump(includeCollectives=True, onlyActive=True)
            for entry in json.loads(text).get("entries") or ():
                if entry["retired"] or entry["state"] == "completed":
                    continue
                op = _operation(entry["profiling_name"])
                oldest[op] = min(entry["time_created_ns"] / 1e9, oldest.get(op, float("inf")))
        return oldest


def _operation(profiling_name: str) -> str:
    """Return the operation behind a name such as ``nccl:_all_gather_base`` or ``nccl:send 0->1``."""
    name = profiling_name.rpartition(":")[2].partition(" ")[0].strip("_").replace("allreduce", "all_reduce")
    return next((op for op in sorted(COLLECTIVES, key=len, reverse=True) if name.startswith(op)), "other")


def _on_host(args: Sequence[Any]) -> bool:
    """Whether the host waits for the result, because the tensors of the first argument are in its memory."""
    value: Any = args[0] if args else None
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return getattr(getattr(value, "device", None), "type", None) == "cpu"
