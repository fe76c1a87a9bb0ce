"""StateActions: saving the run's state on command, and loading a checkpoint into it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainswitch.errors import ActionRefused, CheckpointError
from trainswitch.intervention.commands import Command, CommandResult, Params, RollbackParams, StopParams
from trainswitch.intervention.follower import FollowerStore

if TYPE_CHECKING:
    from trainswitch.intervention.checkpoint_writer import SaveResult
    from trainswitch.intervention.checkpoints import CheckpointStore
    from trainswitch.intervention.control_file import CheckpointEntry
    from trainswitch.intervention.training_state import TrainingState


DATA_PART = "data"
"""Name of the part that a rollback leaves alone unless it is to rewind."""


class StateActions:
    """What commands do with the checkpoints of a run; it answers none of them itself.

    A save that was begun for a command is written by the store's thread; `take_ended` tells how it ended.
    """

    def __init__(
        self,
        training: TrainingState | None,
        store: CheckpointStore | FollowerStore | None,
        *,
        follows: bool = False,
        holds_data: bool = False,
        meta: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Wire the parts together.

        Args:
            training: what is saved and loaded; None where nothing was attached.
            store: the checkpoints; None where nothing was attached.
            follows: whether this is a rank that does what rank 0 is commanded, and answers nothing.
            holds_data: whether a part `DATA_PART` is saved, the position in the data.
            meta: returns what a checkpoint's meta holds besides the step; numbers, strings, plain containers.
        """
        self._training = training
        self._store = store
        self._follows = follows
        self._holds_data = holds_data
        self._meta = meta
        self._writing: tuple[Command, str] | None = None
        self._saved: SaveResult | None = None
        self._save_ended = threading.Event()
        self._prepared: tuple[dict[str, Any], CheckpointEntry] | None = None

    # ── saving ────────────────────────────────────────────────────────────────────────────────────────

    def capture(self, step: int) -> dict[str, Any]:
        """Copy the state of `step` to host memory.

        Raises:
            ActionRefused: there is nothing to save.
            CheckpointError: a part of the state cannot be saved.
        """
        training, _ = self.checkpoints()
        return training.capture({"step": step, **self._meta()})

    def save(
        self,
        command: Command,
        detail: str,
        step: int,
        kind: Literal["probation", "suspect"],
        *,
        pin: bool = False,
    ) -> None:
        """Begin to save `step` for `command`; rank 0 goes on meanwhile.

        Another rank waits for its own part, which is small; where the state is spread over the ranks it goes
        on, too, and rank 0's save ends when all parts are there.

        Args:
            command: whose answer the end of the save is.
            detail: of that answer; ``{step}`` is filled in.
            step: at whose boundary the run stands.
            kind: of the checkpoint.
            pin: whether rotation is to leave it alone.

        Raises:
            ActionRefused: there is nothing to save.
            CheckpointError: a part of the state cannot be saved, or another save is in progress.
        """
        training, store = self.checkpoints()
        wait = self._follows and not training.spread
        if not wait:
            _check_idle(store)  # before the copy is made, not after
        self._saved = None
        store.save(self.capture(step), step, kind=kind, pin=pin, wait=wait)
        if not self._follows:
            self._writing = command, detail

    def finish(self) -> None:
        """Wait until no save is in progress.

        Raises:
            ActionRefused: there is nothing to save.
        """
        self.checkpoints()[1].finish()

    @property
    def writing(self) -> bool:
        """Whether a save that a command has begun has not been answered yet."""
        return self._writing is not None

    def saved(self, result: SaveResult) -> None:
        """Take note of a finished save; called by the store's thread."""
        self._saved = result
        self._save_ended.set()

    def wait_saved(self, timeout: float) -> None:
        """Sleep until a save has ended, at most `timeout` seconds."""
        self._save_ended.wait(timeout)
        self._save_ended.clear()

    def take_ended(self, step: int) -> tuple[Command, CommandResult, str] | None:
        """Return, once, the command whose save has ended, and its answer; None while there is none."""
        if self._writing is None or self._saved is None:
            return None
        (command, detail), result = self._writing, self._saved
        self._writing = self._saved = None
        if result.error is not None:
            return command, *self.unsaved(command, result.error, step)
        detail = detail.format(step=result.step)
        if result.entry is not None and result.entry.pinned:
            detail += " It is pinned."
        if result.nonfinite:
            detail += f" It is suspect, because {result.nonfinite}."
        return command, "applied", detail

    @staticmethod
    def unsaved(command: Command, error: CheckpointError, step: int) -> tuple[CommandResult, str]:
        """Return the answer to a `command` whose save has failed with `error`."""
        if command.action == "stop":  # a full disk is no reason to go on
            return "applied", f"stopped at step {step} without a checkpoint: {error}"
        done = f"paused at step {step}, but: " if command.action == "pause_and_snapshot" else ""
        return "failed", f"{done}{error}"

    # ── loading ───────────────────────────────────────────────────────────────────────────────────────

    def load(self, which: RollbackParams) -> tuple[dict[str, Any], CheckpointEntry]:
        """Load the checkpoint that is asked for, or the one that `prepare` has read.

        Returns:
            Its meta and entry.

        Raises:
            ActionRefused: there is nothing to load into.
            CheckpointError: the checkpoint is not there or cannot be loaded.
        """
        training, store = self.checkpoints()
        captured, entry = self._prepared or _choose(store, which)
        meta = training.restore(captured, self._left(which))
        store.rolled_back(entry.step)
        return meta, entry

    def trouble(self, step: int) -> None:
        """Note that trouble began at `step`: what was saved shortly before is suspect."""
        if self._store is not None:
            self._store.trouble(step)

    # ── trying, before anything is changed; see `Interventions.prepare` ─────────────────────────────────

    def check_snapshot(self, _params: Params, _chosen: dict[str, Any]) -> dict[str, Any]:
        """Try whether a save could begin now."""
        _, store = self.checkpoints()
        if self._follows:
            store.finish()  # what rank 0 has not waited for: nearly done, or given up by it
        _check_idle(store)
        return {}

    def check_snapshot_at_once(self, _params: Params, _chosen: dict[str, Any]) -> dict[str, Any]:
        """Try whether a save could begin, after one that is in progress."""
        _, store = self.checkpoints()
        store.finish()  # the run must not go on, and stands still while this is waited for
        return {}

    def check_stop(self, params: StopParams, chosen: dict[str, Any]) -> dict[str, Any]:
        """Try whether the last save could begin, where one is wanted."""
        if params.snapshot and self.saves():
            self.check_snapshot_at_once(params, chosen)
        return {}

    def check_rollback(self, params: RollbackParams, chosen: dict[str, Any], step: int) -> dict[str, Any]:
        """Choose and read the checkpoint that `load` is to load.

        Returns:
            What the other ranks need to find it.
        """
        self.trouble(step)  # before the choice, as when it is carried out
        return self.prepare(params, chosen)

    def check_rewind(self) -> None:
        """Try whether the position in the data is among what is saved.

        Raises:
            ActionRefused: it is not.
        """
        if not self._holds_data:
            raise ActionRefused(
                "this run's checkpoints hold no position in the data, so it cannot be rewound: pass the "
                "loader as attach(data=...), or roll back without it."
            )

    def prepare(self, which: RollbackParams, chosen: dict[str, Any]) -> dict[str, Any]:
        """Choose and read the checkpoint that `load` is to load, and compare it with the run.

        Args:
            which: what is asked for.
            chosen: what rank 0's `prepare` has returned; empty on rank 0.

        Returns:
            What the other ranks need to find it; JSON.

        Raises:
            ActionRefused: there is nothing to load into.
            CheckpointError: there is no such checkpoint, it cannot be read, or it does not fit.
        """
        training, store = self.checkpoints()
        captured, entry = _choose(store, which, chosen.get("folder"))
        if chosen and entry.created_at != chosen["created_at"]:
            raise CheckpointError(
                "state",
                f"the checkpoint of step {entry.step} in {entry.path} is not the one that rank 0 sees there: "
                "give all ranks one checkpoint folder.",
            )
        training.check(captured, self._left(which))
        self._prepared = captured, entry
        return {"step": entry.step, "created_at": entry.created_at, "folder": Path(entry.path).name}

    def _left(self, which: RollbackParams) -> frozenset[str]:
        """Return the parts that loading leaves as they are."""
        return frozenset({DATA_PART}) if self._holds_data and which.data == "skip" else frozenset()

    def forget_prepared(self) -> None:
        """Forget what `prepare` has read: as large as the training state."""
        self._prepared = None

    def forget_save(self, command: Command) -> None:
        """Forget that a save was begun for `command`, if one was: it is answered otherwise."""
        if self._writing is not None and self._writing[0] is command:
            self._writing = self._saved = None

    # ── what a run has ────────────────────────────────────────────────────────────────────────────────

    def empty(self) -> bool:
        """Whether there is somewhere to save, and nothing in it; of rank 0."""
        return self._store is not None and not self._store.entries()

    def saves(self) -> bool:
        """Whether this run has a state that can be saved."""
        return self._store is not None and self._training is not None and not self._training.obstacle

    def checkpoints(self) -> tuple[TrainingState, CheckpointStore | FollowerStore]:
        """Return what is saved, and where.

        Raises:
            ActionRefused: nothing was attached, or its state cannot be had.
        """
        if self._training is None or self._store is None:
            raise ActionRefused(
                "this run has no state to save: attach a model, an optimizer or further state."
            )
        if self._training.obstacle:
            raise ActionRefused(self._training.obstacle)
        return self._training, self._store


def _check_idle(store: CheckpointStore | FollowerStore) -> None:
    """Return if a save could begin now.

    Raises:
        CheckpointError: ``busy``: another one is in progress.
    """
    if store.busy:
        raise CheckpointError("busy", "a checkpoint is being written.")


def _choose(
    store: CheckpointStore | FollowerStore, which: RollbackParams, folder: str | None = None
) -> tuple[dict[str, Any], CheckpointEntry]:
    """Read the checkpoint that is asked for, on rank 0; elsewhere the one that rank 0 has chosen."""
    if not isinstance(store, FollowerStore):
        return store.load(which.step, which.before_step, or_oldest=which.or_oldest)
    if folder is None:
        raise CheckpointError("state", "rank 0 chooses the checkpoint, and names its folder.")
    return store.load(folder)
