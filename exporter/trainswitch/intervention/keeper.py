"""CheckpointKeeper: saves a run's checkpoints at their interval, and tells the ring what there is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from trainswitch.config import CheckpointConfig
from trainswitch.errors import CheckpointError
from trainswitch.recording.records import Kind

if TYPE_CHECKING:
    from trainswitch.intervention.checkpoint_writer import SaveResult
    from trainswitch.intervention.checkpoints import CheckpointStore
    from trainswitch.intervention.control_file import CheckpointEntry
    from trainswitch.intervention.follower import FollowerStore

logger = logging.getLogger("trainswitch")


class Record(Protocol):
    """Writes one record."""

    def __call__(self, kind: Kind, values: tuple[float, ...] = (), *, label: str = "") -> None:
        """Write it."""


class CheckpointKeeper:
    """Keeps the checkpoints of one run. Trouble is counted and reported, and never reaches the loop."""

    def __init__(
        self,
        run: str,
        config: CheckpointConfig,
        *,
        record: Record,
        report: Callable[[str, str], None],
        judge: Callable[[dict[str, Any]], str],
        rank: int = 0,
    ) -> None:
        """Find what earlier sessions left.

        Args:
            run: name of the run, checked.
            config: where, how often and how many.
            record: writes a record.
            report: logs a trouble (its kind, a sentence) once.
            judge: returns where a captured state holds NaN or infinity; called off the training thread.
            rank: of this process; those above 0 keep only what is their own.
        """
        self._interval = config.interval_steps
        self._record = record
        self._report = report
        self._told: dict[str, CheckpointEntry] = {}
        self.on_saved: Callable[[SaveResult], None] = lambda _: None
        """Hears of each finished save, from the store's thread."""
        self.store = self._open(run, config, judge, rank)

    def _open(
        self, run: str, config: CheckpointConfig, judge: Callable[[dict[str, Any]], str], rank: int
    ) -> CheckpointStore | FollowerStore:
        from trainswitch.intervention.checkpoints import CheckpointStore
        from trainswitch.intervention.follower import FollowerStore

        if rank > 0:
            return FollowerStore(config.folder, run, rank, judge=judge, on_saved=self._saved)
        return CheckpointStore(
            config.folder,
            run,
            keep=config.keep,
            probation_steps=config.probation_steps,
            max_pinned=config.max_pinned,
            judge=judge,
            on_saved=self._saved,
        )

    def keep(self, step: int, capture: Callable[[], dict[str, Any]]) -> None:
        """Let time pass for the checkpoints, and save one if it is due; called at the end of each step."""
        self.store.advance(step)
        if not self._interval or step % self._interval:
            return
        start = time.perf_counter()
        try:
            if self.store.busy:  # before the copy is made, not after
                error = CheckpointError("busy", f"step {step} was not saved: the last save is not done yet.")
                self._failed(error)
            else:
                self.store.save(capture(), step)
        except CheckpointError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - a state_dict() that fails never ends a training
            sentence = f"step {step} was not saved: {type(error).__name__}: {error}"
            self._failed(CheckpointError("state", sentence))
        self._record(Kind.PHASE, (time.perf_counter() - start,), label="checkpoint")

    def tell(self) -> None:
        """Say what has changed since the last time; called a few times a second, off the training thread."""
        for problem in self.store.take_problems():
            self._record(Kind.CHECKPOINT_FAILED, label=problem.reason)
            logger.warning("%s", problem)
        newest = {}
        for entry in self.store.entries():  # in the order of their saving
            newest["latest"] = entry
            if entry.kind == "stable":
                newest["stable"] = entry
        for kind, entry in newest.items():
            if self._told.get(kind) != entry:
                self._record(Kind.CHECKPOINT, (float(entry.step), entry.created_at), label=kind)
        self._told = newest

    def tell_again(self) -> None:
        """Say everything at the next `tell`: whoever listened has forgotten it."""
        self._told = {}

    def _saved(self, result: SaveResult) -> None:
        if result.error is not None:
            self._record(Kind.CHECKPOINT_FAILED, label=result.error.reason)
            logger.warning("%s", result.error)
        else:
            self._record(Kind.CHECKPOINT_WRITTEN, (result.seconds,))
        self.on_saved(result)

    def _failed(self, error: CheckpointError) -> None:
        self._record(Kind.CHECKPOINT_FAILED, label=error.reason)
        self._report(f"checkpoint {error.reason}", str(error))
