"""What PyTorch's caching allocator holds on a rank's CUDA device.

The driver sees what the allocator has reserved, not what of it is in use, so a leak inside the cache stays
hidden from it. At the end of a step the activations are gone and what is allocated is comparable from step to
step. The allocator counts on the host: asking it synchronises nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainswitch.probes.layers import Append
from trainswitch.recording.records import Kind

INTERVAL_SECONDS = 1.0
"""At most so often; an answer takes tens of microseconds."""


class DeviceMemory:
    """Reads the allocator of one device at the ends of steps."""

    def __init__(
        self, device: torch.device, append: Append, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Watch `device`.

        Args:
            device: a CUDA device that is in use.
            append: writes a record; `StepRing.append`.
            clock: monotonic seconds.
        """
        self._device = device
        self._append = append
        self._clock = clock
        self._capacity = float(torch.cuda.get_device_properties(device).total_memory)
        self._due = clock()

    def end_step(self, step: int) -> None:
        """Record what is held after step number `step`, if that is due."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + INTERVAL_SECONDS
        stats: dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(self._device)
        if not stats:  # another allocator is plugged in
            return
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]["current"]
        bytes_held = (allocated["current"], reserved, allocated["peak"], self._capacity)
        self._append(Kind.MEMORY, step, (*bytes_held, stats["num_alloc_retries"], stats["num_ooms"]))


def cuda_device(tensors: Iterable[torch.Tensor]) -> torch.device | None:
    """Return the CUDA device of the first of `tensors` that is on one; None where there is none."""
    return next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
