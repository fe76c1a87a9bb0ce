"""Carrying commands out at a step boundary: what each action does to the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainswitch.errors import ActionRefused, CheckpointError, CommandError, TrainswitchError
from trainswitch.intervention.channel import ControlChannel
from trainswitch.intervention.commands import (
    ACTIONS,
    Command,
    CommandOutcome,
    CommandResult,
    NoParams,
    Params,
    ReduceLrParams,
    RollbackParams,
    StopParams,
    check_action,
)

if TYPE_CHECKING:
    from trainswitch.intervention.checkpoints import CheckpointStore, SaveResult
    from trainswitch.intervention.control_file import CheckpointEntry
    from trainswitch.intervention.learning_rate import LearningRateScale
    from trainswitch.intervention.training_state import TrainingState

logger = logging.getLogger("trainswitch")

_SUPERSEDED_BY = {"pause": ("resume", "stop")}
"""A command that has not been carried out yet is superseded by a later one of these."""


class Interventions:
    """Takes the channel's commands one after the other and answers each exactly once.

    A snapshot is written by the checkpoint store's thread and answered when it is durable; the commands
    behind it wait for that, training does not.
    """

    def __init__(
        self,
        channel: ControlChannel,
        *,
        training: TrainingState | None,
        store: CheckpointStore | None,
        learning_rate: LearningRateScale | None,
        world_size: int,
        on_answer: Callable[[CommandOutcome, float], None],
        statistics: Callable[[], dict[str, Any] | None] = lambda: None,
        on_restored: Callable[[int, dict[str, Any]], None] = lambda _step, _meta: None,
    ) -> None:
        """Wire the parts together.

        Args:
            channel: where commands come from and answers go.
            training: what a snapshot saves and a rollback restores; None where nothing was attached.
            store: the checkpoints; None where nothing was attached.
            learning_rate: scales the optimizer's learning rates; None without an optimizer.
            world_size: number of ranks.
            on_answer: called with each answer and the seconds since the command was issued.
            statistics: returns what a checkpoint keeps of the statistics, as ``statistics`` in its meta.
            on_restored: called with the step and the meta of a checkpoint that was loaded.
        """
        self._channel = channel
        self._training = training
        self._store = store
        self._learning_rate = learning_rate
        self._world_size = world_size
        self._on_answer = on_answer
        self._statistics = statistics
        self._on_restored = on_restored
        self._writing: tuple[Command, str] | None = None
        self._saved: SaveResult | None = None
        self._save_ended = threading.Event()
        self.step = 0
        """Step at whose boundary the run stands; a rollback sets it back."""
        self.paused = False
        self.stopping = False
        self._handlers: dict[str, Callable[[Command, Any], str | None]] = {
            "pause": self._pause,
            "resume": self._resume,
            "snapshot": self._snapshot,
            "pause_and_snapshot": self._pause_and_snapshot,
            "reduce_lr": self._reduce_lr,
            "rollback": self._rollback,
            "stop": self._stop,
        }
        assert self._handlers.keys() == ACTIONS.keys()

    def carry_out(self) -> None:
        """Carry out what can be carried out now; never raises for a command's sake."""
        if self._writing is not None and not self._finish_snapshot():
            return
        while self._channel.pending:
            if not self._begin(self._channel.pending[0]):
                return

    def saved(self, result: SaveResult) -> None:
        """Take note of a finished save; called by the store's thread."""
        self._saved = result
        self._save_ended.set()

    def wait(self, timeout: float) -> None:
        """Sleep until there is something to carry out, at most `timeout` seconds."""
        if self._channel.pending:  # and not carried out yet: a save is in its way
            self._save_ended.wait(timeout)
            self._save_ended.clear()
        else:
            self._channel.wait(timeout)

    def capture(self) -> dict[str, Any]:
        """Copy the run's state to host memory.

        Raises:
            ActionRefused: there is nothing to save.
            CheckpointError: a part of the state cannot be saved.
        """
        training, _ = self._checkpoints()
        factor = self._learning_rate.factor if self._learning_rate is not None else 1.0
        return training.capture(
            {"step": self.step, "learning_rate_factor": factor, "statistics": self._statistics()}
        )

    def restore(self, step: int | None) -> CheckpointEntry:
        """Load a checkpoint at the start of a session: as a rollback does, and its learning-rate factor, too.

        Raises:
            ActionRefused: there is nothing to load into.
            CheckpointError: the checkpoint is not there or cannot be loaded.
        """
        meta, entry = self._load(step)
        factor = meta["learning_rate_factor"]
        if self._learning_rate is not None:
            self._learning_rate.factor = factor
        elif factor != 1.0:
            logger.warning(
                "the checkpoint's learning-rate factor of %g has no optimizer to act on: attach one.", factor
            )
        return entry

    def _begin(self, command: Command) -> bool:
        """Carry `command` out, and return whether the next one may follow."""
        refusal = self._reason_not_to(command)
        if refusal is not None:
            self._answer(command, *refusal)
            return True
        try:
            params: Params = check_action(command.action, command.params)
            detail = self._handlers[command.action](command, params)
        except CheckpointError as error:
            if error.reason == "busy":  # a periodic save is being written: the same command, next time
                return False
            self._answer_unsaved(command, error)
        except (ActionRefused, CommandError) as error:
            self._answer(command, "refused", str(error))
        except TrainswitchError as error:
            self._answer(command, "failed", str(error))
        except Exception as error:
            logger.exception("command %s (%s) failed", command.id, command.action)
            self._answer(command, "failed", f"{type(error).__name__}: {error}")
        else:
            if detail is None:
                return False
            self._answer(command, "applied", detail)
        return True

    def _reason_not_to(self, command: Command) -> tuple[CommandResult, str] | None:
        now = time.time()
        if now > command.expires_at:
            late = now - command.expires_at
            return "expired", f"read {late:.1f} s after its expiry; issue it again if it is still wanted."
        if not self._channel.trusted(command):
            return "superseded", "an earlier session may have carried it out: its status.json was damaged."
        for later in self._channel.pending:
            if later.seq > command.seq and later.action in _SUPERSEDED_BY.get(command.action, ()):
                return "superseded", f"{later.action} (seq {later.seq}) came before it was carried out."
        if self._world_size > 1:
            return "refused", (
                f"this run has {self._world_size} ranks, and commands need one: use the run's scheduler."
            )
        return None

    def _answer(self, command: Command, result: CommandResult, detail: str) -> None:
        now = time.time()
        outcome = CommandOutcome(
            id=command.id,
            seq=command.seq,
            action=command.action,
            result=result,
            step=self.step,
            at=now,
            detail=detail,
        )
        self._channel.step = self.step
        self._channel.state = "paused" if self.paused else "running"
        self._channel.answer(outcome)
        self._on_answer(outcome, now - command.issued_at)
        logger.warning("%s %s at step %d: %s", command.action, result, self.step, detail)

    # ── the actions; each returns what it did, or None when that takes until a later boundary ──────────

    def _pause(self, _command: Command, _params: NoParams) -> str:
        self.paused = True
        self._trouble()
        return f"paused at step {self.step}."

    def _resume(self, _command: Command, _params: NoParams) -> str:
        was_paused, self.paused = self.paused, False
        return f"resumed at step {self.step}." if was_paused else "the run was not paused."

    def _snapshot(self, command: Command, _params: NoParams) -> str | None:
        self._save(command, "saved step {step}.")
        return None

    def _pause_and_snapshot(self, command: Command, _params: NoParams) -> str | None:
        self.paused = True
        self._trouble()
        self._save(command, "paused and saved step {step}.")
        return None

    def _reduce_lr(self, _command: Command, params: ReduceLrParams) -> str:
        detail = self._scale_learning_rate(params.factor)
        if not self.paused:  # right after a rollback there is nothing to suspect
            self._trouble()
        return detail

    def _rollback(self, _command: Command, params: RollbackParams) -> str:
        self._checkpoints()
        if params.lr_factor is not None and self._learning_rate is None:
            raise ActionRefused("this run has no optimizer whose learning rate could be lowered: attach one.")
        self._trouble()  # whatever was saved shortly before is suspect; the one to be loaded is not touched
        before = self.step
        _, entry = self._load(params.step)
        detail = f"rolled back from step {before} to the {entry.kind} checkpoint of step {self.step}."
        if params.lr_factor is not None:
            # The factor of the checkpoint is not restored: what was lowered since stays lowered.
            detail += " " + self._scale_learning_rate(params.lr_factor)
        return detail

    def _stop(self, command: Command, params: StopParams) -> str | None:
        self.paused = False
        self.stopping = True
        if params.snapshot and self._store is not None:
            self._save(command, "stopped and saved step {step}.")
            return None
        return f"stopped at step {self.step}."

    # ── what they share ───────────────────────────────────────────────────────────────────────────────

    def _checkpoints(self) -> tuple[TrainingState, CheckpointStore]:
        if self._training is None or self._store is None:
            raise ActionRefused(
                "this run has no state to save: attach a model, an optimizer or further state."
            )
        return self._training, self._store

    def _load(self, step: int | None) -> tuple[dict[str, Any], CheckpointEntry]:
        """Load a checkpoint into the run, whose steps go on from there; return its meta and entry."""
        training, store = self._checkpoints()
        captured, entry = store.load(step)
        meta = training.restore(captured)
        store.rolled_back(entry.step)
        self.step = int(meta["step"])
        self._on_restored(self.step, meta)
        return meta, entry

    def _save(self, command: Command, detail: str) -> None:
        _, store = self._checkpoints()
        self._saved = None
        store.save(self.capture(), self.step, kind="suspect" if self.paused else "probation")
        self._writing = command, detail

    def _finish_snapshot(self) -> bool:
        """Answer the snapshot that is being written, if it is done."""
        assert self._writing is not None
        if self._saved is None:
            return False
        (command, detail), result = self._writing, self._saved
        self._writing = self._saved = None
        if result.error is not None:
            self._answer_unsaved(command, result.error)
        else:
            self._answer(command, "applied", detail.format(step=result.step))
        return True

    def _answer_unsaved(self, command: Command, error: CheckpointError) -> None:
        if command.action == "stop":  # a full disk is no reason to go on
            self._answer(command, "applied", f"stopped at step {self.step} without a checkpoint: {error}")
        else:
            done = f"paused at step {self.step}, but: " if command.action == "pause_and_snapshot" else ""
            self._answer(command, "failed", f"{done}{error}")

    def _scale_learning_rate(self, factor: float) -> str:
        if self._learning_rate is None:
            raise ActionRefused("this run has no optimizer whose learning rate could be lowered: attach one.")
        self._learning_rate.multiply(factor)
        rates = ", ".join(f"{value:.4g}" for value in self._learning_rate.effective())
        return f"learning rate multiplied by {factor:g}: now {rates}."

    def _trouble(self) -> None:
        if self._store is not None:
            self._store.trouble(self.step)
