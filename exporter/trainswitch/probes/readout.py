"""Getting values to the host without making the training thread wait for the device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("trainswitch")

Scalar = Any
"""A float, an int, a 0-d tensor on any device, a NumPy scalar, or None for 'no value'."""

HostValues = tuple["float | None", ...]


class Event(Protocol):
    """What is needed of a CUDA event."""

    def record(self) -> None:
        """Mark the point in the device's stream that has to be reached."""

    def query(self) -> bool:
        """Whether that point has been reached; must not wait."""

    def synchronize(self) -> None:
        """Wait for it."""


class Readout:
    """Hands each step's values over when they are on the host, in the order of the steps.

    Values already on the host are handed over at once. Values on a CUDA device are copied to pinned memory
    behind the work that produces them; they are handed over by a later call that finds the copy's event
    completed, usually one or two steps later. Nothing here waits for the device but `flush`.
    """

    def __init__(
        self,
        publish: Callable[[Any, HostValues], None],
        *,
        slots: int = 256,
        width: int = 2,
        new_event: Callable[[], Event] | None = None,
        on_device: Callable[[Any], bool] | None = None,
    ) -> None:
        """Create a readout; memory is pinned at the first value that needs it.

        Args:
            publish: called with what `submit` was given and its values, None where there was none.
            slots: steps whose values may be on their way at a time; beyond that they are given up and logged.
            width: values a step at most.
            new_event: makes an event; a CUDA event by default.
            on_device: whether a value must be copied; ``tensor.is_cuda`` by default.
        """
        self._publish = publish
        self._slots = slots
        self._width = width
        self._new_event = new_event or _cuda_event
        self._on_device = on_device or _is_cuda_tensor
        self._buffer: torch.Tensor | None = None
        self._events: list[Event] = []
        self._waiting: deque[tuple[Any, list[float | None], list[int], int]] = deque()
        self._next = 0
        self._given_up = False

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return not self._waiting

    def submit(self, item: Any, values: Sequence[Scalar]) -> None:
        """Hand `item` over with `values` as soon as they, and all earlier ones, are on the host."""
        if not self._waiting:
            for value in values:
                if type(value) is not float and value is not None:
                    break
            else:  # the common case on the CPU, without a list
                self._publish(item, tuple(values))
                return
        host: list[float | None] = []
        device: list[int] = []
        for index, value in enumerate(values):
            if value is None or type(value) is float:
                host.append(value)
            elif self._on_device(value):
                host.append(None)
                device.append(index)
            else:
                host.append(to_float(value))
        if not device:
            if self._waiting:
                self._waiting.append((item, host, device, -1))
                self.poll()
            else:
                self._publish(item, tuple(host))
            return
        self._copy(item, host, device, values)
        self.poll()

    def poll(self) -> None:
        """Hand over what has arrived."""
        while self._waiting:
            item, host, device, slot = self._waiting[0]
            if slot >= 0 and not self._events[slot].query():
                return
            self._waiting.popleft()
            self._fill(host, device, slot)
            self._publish(item, tuple(host))

    def flush(self) -> None:
        """Wait for everything on its way and hand it over; for the end of a run and for tests."""
        for _, _, _, slot in self._waiting:
            if slot >= 0:
                self._events[slot].synchronize()
        self.poll()

    def _copy(self, item: Any, host: list[float | None], device: list[int], values: Sequence[Scalar]) -> None:
        if self._buffer is None:
            self._buffer = _pinned(self._slots, self._width)
            self._events = [self._new_event() for _ in range(self._slots)]
        if sum(slot >= 0 for *_, slot in self._waiting) >= self._slots:
            if not self._given_up:
                self._given_up = True
                logger.warning(
                    "the device is more than %d steps behind: values of some steps are not read.", self._slots
                )
            self._waiting.append((item, host, [], -1))
            return
        slot = self._next
        self._next = (slot + 1) % self._slots
        for index in device:
            self._buffer[slot, index].copy_(values[index].detach(), non_blocking=True)
        self._events[slot].record()
        self._waiting.append((item, host, device, slot))

    def _fill(self, host: list[float | None], device: list[int], slot: int) -> None:
        if device:
            assert self._buffer is not None
            for index in device:
                host[index] = float(self._buffer[slot, index])


def to_float(value: Scalar) -> float | None:
    """Return a number or a 0-d tensor as a float; None, and a line in the log, for anything else."""
    try:
        return float(value.detach()) if hasattr(value, "detach") else float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        logger.warning(
            "a value of type %s is not one number and was left out: %s", type(value).__name__, error
        )
        return None


def _is_cuda_tensor(value: Any) -> bool:
    return bool(getattr(value, "is_cuda", False))


def _pinned(slots: int, width: int) -> torch.Tensor:
    import torch

    return torch.empty((slots, width), pin_memory=torch.cuda.is_available())


def _cuda_event() -> Event:
    import torch

    event: Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event


class VectorReadout:
    """Hands 1-d tensors over as lists when they are on the host, in order: one copy each, nothing waited for.

    For values that are sampled now and then; `Readout` is for those of every step.
    """

    def __init__(
        self,
        publish: Callable[[Any, list[float]], None],
        *,
        limit: int = 16,
        new_event: Callable[[], Event] | None = None,
        on_device: Callable[[Any], bool] | None = None,
    ) -> None:
        """Create a readout.

        Args:
            publish: called with what `submit` was given and the tensor's values.
            limit: tensors that may be on their way at a time; beyond that they are given up and logged.
            new_event: makes an event; a CUDA event by default.
            on_device: whether a tensor must be copied; ``tensor.is_cuda`` by default.
        """
        self._publish = publish
        self._limit = limit
        self._new_event = new_event or _cuda_event
        self._on_device = on_device or _is_cuda_tensor
        self._given_up = False
        self.waiting: deque[tuple[Any, torch.Tensor, Event | None]] = deque()
        """What is on its way."""

    def submit(self, item: Any, vector: torch.Tensor) -> None:
        """Hand `item` over with the values of `vector` as soon as they, and all earlier ones, are there."""
        if len(self.waiting) >= self._limit:
            self.poll()
        if not self._on_device(vector):
            self.waiting.append((item, vector, None))
        elif len(self.waiting) < self._limit:
            # Freed pinned memory is kept and handed out again, so only the first samples allocate any.
            buffer = _pinned_like(vector)
            buffer.copy_(vector, non_blocking=True)
            event = self._new_event()
            event.record()
            self.waiting.append((item, buffer, event))
        elif not self._given_up:
            self._given_up = True
            logger.warning("the device is more than %d samples behind: some are not read.", self._limit)
        self.poll()

    def poll(self) -> None:
        """Hand over what has arrived."""
        while self.waiting:
            item, values, event = self.waiting[0]
            if event is not None and not event.query():
                return
            self.waiting.popleft()
            self._publish(item, values.tolist())

    def flush(self) -> None:
        """Wait for everything on its way and hand it over; for the end of a run and for tests."""
        for _, _, event in self.waiting:
            if event is not None:
                event.synchronize()
        self.poll()


def _pinned_like(vector: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty(vector.shape, dtype=vector.dtype, pin_memory=torch.cuda.is_available())
