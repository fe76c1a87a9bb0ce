"""DataFeed: the batches of a training loop, how long it waits for them, and which of them it does not get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, TypeVar

from trainswitch.errors import ActionRefused
from trainswitch.intervention.commands import SkipBatchesParams

Batch = TypeVar("Batch")


class _Pass:
    """One pass through a loader."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.rewound = False
        """Whether the loader has been put back, so that the pass has to take a new iterator of it."""


class DataFeed:
    """Iterates loaders for the loop. Passes may be nested, as an evaluation within a step is.

    At a step's boundary the innermost pass that has not ended is the one that is trained on.
    """

    def __init__(self, stopping: Callable[[], bool]) -> None:
        """Feed a loop until `stopping` says that it is to end."""
        self._stopping = stopping
        self._passes: list[_Pass] = []
        self._to_skip = 0
        self._skip_in: Iterable[Any] | None = None
        """The loader whose batches are skipped; the next pass through it goes on skipping."""
        self.waited = 0.0
        """Seconds since it was last set to zero."""

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of `loader` until it, or the run, ends."""
        this = _Pass(loader)
        self._passes.append(this)
        try:
            iterator = iter(loader)
            while not self._stopping():
                start = perf_counter()
                if this.rewound:
                    this.rewound = False
                    del iterator  # its workers end before those of the next one begin
                    iterator = iter(loader)
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                self.waited += perf_counter() - start
                if self._to_skip and self._skip_in is loader:
                    self._to_skip -= 1
                    continue
                yield batch
        finally:
            self._passes.remove(this)

    # ── what commands do with it; at a step's boundary ────────────────────────────────────────────────

    def check_skip(self, _params: SkipBatchesParams) -> None:
        """Try whether batches can be skipped.

        Raises:
            ActionRefused: the loop does not go through `batches`.
        """
        self._trained_on("batches cannot be skipped")

    def skip(self, params: SkipBatchesParams) -> str:
        """Draw the next batches of the loader that is trained on without yielding them, and say so."""
        loader = self._trained_on("batches cannot be skipped").loader
        left = self._to_skip if self._skip_in is loader else 0
        self._to_skip, self._skip_in = left + params.count, loader
        return f"the next {self._to_skip} batches are skipped."

    def check_rewind(self) -> None:
        """Try whether `rewind` can have an effect.

        Raises:
            ActionRefused: the loop does not go through `batches`, or gave it what begins only once.
        """
        loader = self._trained_on("the data cannot be rewound").loader
        if isinstance(loader, Iterator) and not hasattr(loader, "load_state_dict"):
            raise ActionRefused(
                f"the data cannot be rewound, because switch.batches() was given an iterator "
                f"({type(loader).__name__}), which begins only once: give it the loader."
            )

    def rewind(self) -> None:
        """Take a new iterator of the loader that is trained on: its position has been put back."""
        self._trained_on("the data cannot be rewound").rewound = True
        self._to_skip = 0  # they were counted from the position that was left

    def _trained_on(self, vain: str) -> _Pass:
        if not self._passes:
            raise ActionRefused(
                f"{vain}, because this loop does not iterate its data through switch.batches(loader): "
                "let it do so."
            )
        return self._passes[-1]
