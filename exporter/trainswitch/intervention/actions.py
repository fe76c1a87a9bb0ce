"""Carrying commands out at a step boundary: what each action does to the run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

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
    from trainswitch.intervention.follower import FollowerStore
    from trainswitch.intervention.learning_rate import LearningRateScale
    from trainswitch.intervention.training_state import TrainingState

logger = logging.getLogger("trainswitch")

_SUPERSEDED_BY = {"pause": ("resume", "stop")}
"""A command that has not been carried out yet is superseded by a later one of these."""


class Refusal(NamedTuple):
    """Why a command was not carried out."""

    result: CommandResult
    detail: str

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """Return the answer that `error` means: ``refused`` where nothing was tried, else ``failed``."""
        if isinstance(error, ActionRefused | CommandError):
            return cls("refused", str(error))
        if isinstance(error, TrainswitchError):
            return cls("failed", str(error))
        logger.error("a command failed", exc_info=error)
        return cls("failed", f"{type(error).__name__}: {error}")


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
        store: CheckpointStore | FollowerStore | None,
        learning_rate: LearningRateScale | None,
        follows: bool = False,
        on_answer: Callable[[CommandOutcome, float], None],
        statistics: Callable[[], dict[str, Any] | None] = lambda: None,
        on_restored: Callable[[int, dict[str, Any]], None] = lambda _step, _meta: None,
        moment: Callable[[], str] = lambda: "",
    ) -> None:
        """Wire the parts together.

        Args:
            channel: where commands come from and answers go.
            training: what a snapshot saves and a rollback restores; None where nothing was attached.
            store: the checkpoints; None where nothing was attached.
            learning_rate: scales the optimizer's learning rates; None without an optimizer.
            follows: whether this is a rank that does what rank 0 is commanded, and answers nothing.
            on_answer: called with each answer and the seconds since the command was issued.
            statistics: returns what a checkpoint keeps of the statistics, as ``statistics`` in its meta.
            on_restored: called with the step and the meta of a checkpoint that was loaded.
            moment: names the present boundary, alike on all ranks; ``moment`` in a checkpoint's meta.
        """
        self._channel = channel
        self._training = training
        self._store = store
        self._learning_rate = learning_rate
        self._follows = follows
        self._on_answer = on_answer
        self._statistics = statistics
        self._on_restored = on_restored
        self._moment = moment
        self._writing: tuple[Command, str] | None = None
        self._saved: SaveResult | None = None
        self._save_ended = threading.Event()
        self._prepared: tuple[dict[str, Any], CheckpointEntry] | None = None
        self.obstacle = ""
        """Why no command can be carried out at all, for people; empty where they can."""
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
        self._checks: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
            "snapshot": self._check_snapshot,
            "pause_and_snapshot": self._check_snapshot_at_once,
            "reduce_lr": self._check_reduce_lr,
            "rollback": self._check_rollback,
            "stop": self._check_stop,
        }

    def carry_out(self) -> None:
        """Carry out what can be carried out now; never raises for a command's sake."""
        while (command := self.next_command()) is not None:
            if not self._begin(command):
                return

    # ── the same in parts, for ranks that do each part together; see `agreement` ────────────────────────

    def ready(self) -> bool:
        """Return whether a command can be begun; a snapshot whose save has ended is answered first."""
        if self._writing is not None and not self._finish_snapshot():
            return False
        return bool(self._channel.pending)

    def next_command(self) -> Command | None:
        """Return the next command that is to be carried out now; those that are moot are answered."""
        while self.ready():
            command = self._channel.pending[0]
            refusal = self._reason_not_to(command)
            if refusal is None:
                return command
            self.answer(command, *refusal)
        return None

    def prepare(self, command: Command, chosen: dict[str, Any]) -> dict[str, Any]:
        """Try whatever could keep `command` from being carried out on this rank; the training is not changed.

        Args:
            command: to be carried out by `act`, or to be given up by `drop`.
            chosen: what rank 0's `prepare` has returned; empty on rank 0.

        Returns:
            What the other ranks need to know to do the same; JSON.

        Raises:
            TrainswitchError: this rank cannot carry it out.
        """
        params = check_action(command.action, command.params)
        check = self._checks.get(command.action)
        return check(params, chosen) if check is not None else {}

    def act(self, command: Command) -> str | None:
        """Carry out `command`, and return what was done; None where a save has to end before it is answered.

        Raises:
            TrainswitchError: it did not work.
        """
        try:
            params = check_action(command.action, command.params)
            return self._handlers[command.action](command, params)
        finally:
            self._prepared = None

    def drop(self, command: Command) -> None:
        """Forget what was prepared or begun for `command`; it is answered otherwise."""
        self._prepared = None
        if self._writing is not None and self._writing[0] is command:
            self._writing = self._saved = None

    # ── what a run needs besides ────────────────────────────────────────────────────────────────────────

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
            {
                "step": self.step,
                "learning_rate_factor": factor,
                "statistics": self._statistics(),
                "moment": self._moment(),
            }
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
        try:
            detail = self.act(command)
        except CheckpointError as error:
            if error.reason == "busy":  # a periodic save is being written: the same command, next time
                return False
            self._answer_unsaved(command, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            self.answer(command, *Refusal.of(error))
        else:
            if detail is None:
                return False
            self.answer(command, "applied", detail)
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
        if self.obstacle:
            return "refused", self.obstacle
        return None

    def answer(self, command: Command, result: CommandResult, detail: str) -> None:
        """Acknowledge `command`; it is then no longer pending."""
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
        _, entry = self._load(params.step, params.before_step)
        detail = f"rolled back from step {before} to the {entry.kind} checkpoint of step {self.step}."
        if params.lr_factor is not None:
            # The factor of the checkpoint is not restored: what was lowered since stays lowered.
            detail += " " + self._scale_learning_rate(params.lr_factor)
        return detail

    def _stop(self, command: Command, params: StopParams) -> str | None:
        self.paused = False
        self.stopping = True
        if params.snapshot and self._saves():
            self._checkpoints()[1].finish()  # the loop ends now: no later boundary can save
            self._save(command, "stopped and saved step {step}.")
            return None
        return f"stopped at step {self.step}."

    # ── what they share ───────────────────────────────────────────────────────────────────────────────

    def _check_snapshot(self, _params: Params, _chosen: dict[str, Any]) -> dict[str, Any]:
        _, store = self._checkpoints()
        if store.busy:
            raise CheckpointError("busy", "a checkpoint is being written.")
        return {}

    def _check_snapshot_at_once(self, _params: Params, _chosen: dict[str, Any]) -> dict[str, Any]:
        _, store = self._checkpoints()
        store.finish()  # the run must not go on, and stands still while this is waited for
        return {}

    def _check_stop(self, params: StopParams, chosen: dict[str, Any]) -> dict[str, Any]:
        if params.snapshot and self._saves():
            self._check_snapshot_at_once(params, chosen)
        return {}

    def _check_reduce_lr(self, _params: ReduceLrParams, _chosen: dict[str, Any]) -> dict[str, Any]:
        self._scale_learning_rate(1.0)
        return {}

    def _check_rollback(self, params: RollbackParams, chosen: dict[str, Any]) -> dict[str, Any]:
        if params.lr_factor is not None:
            self._scale_learning_rate(1.0)
        training, store = self._checkpoints()
        self._trouble()  # before the choice, as in `_rollback`
        if chosen:
            captured, entry = store.load(chosen["step"])
        else:
            captured, entry = store.load(params.step, params.before_step)
        if chosen and entry.created_at != chosen["created_at"]:
            raise CheckpointError(
                "state",
                f"the checkpoint of step {entry.step} in {entry.path} is not the one that rank 0 sees there: "
                "give all ranks one checkpoint folder.",
            )
        training.check(captured)
        self._prepared = captured, entry
        return {"step": entry.step, "created_at": entry.created_at}

    def _saves(self) -> bool:
        return self._store is not None and self._training is not None and self._training.sharded() is None

    def _checkpoints(self) -> tuple[TrainingState, CheckpointStore | FollowerStore]:
        if self._training is None or self._store is None:
            raise ActionRefused(
                "this run has no state to save: attach a model, an optimizer or further state."
            )
        if (sharded := self._training.sharded()) is not None:
            raise ActionRefused(
                f"{sharded} is spread over the ranks, and trainswitch saves and loads only what every rank "
                "holds whole: save it in the training script with torch.distributed.checkpoint."
            )
        return self._training, self._store

    def _load(
        self, step: int | None, before_step: int | None = None
    ) -> tuple[dict[str, Any], CheckpointEntry]:
        """Load a checkpoint into the run, whose steps go on from there; return its meta and entry."""
        training, store = self._checkpoints()
        captured, entry = self._prepared or store.load(step, before_step)
        meta = training.restore(captured)
        store.rolled_back(entry.step)
        self.step = int(meta["step"])
        self._on_restored(self.step, meta)
        return meta, entry

    def _save(self, command: Command, detail: str) -> None:
        _, store = self._checkpoints()
        self._saved = None
        kind: Literal["suspect", "probation"] = "suspect" if self.paused else "probation"
        store.save(self.capture(), self.step, kind=kind, wait=self._follows)
        if not self._follows:
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
            self.answer(command, "applied", detail.format(step=result.step))
        return True

    def _answer_unsaved(self, command: Command, error: CheckpointError) -> None:
        if command.action == "stop":  # a full disk is no reason to go on
            self.answer(command, "applied", f"stopped at step {self.step} without a checkpoint: {error}")
        else:
            done = f"paused at step {self.step}, but: " if command.action == "pause_and_snapshot" else ""
            self.answer(command, "failed", f"{done}{error}")

    def _scale_learning_rate(self, factor: float) -> str:
        if self._learning_rate is None:
            raise ActionRefused("this run has no optimizer whose learning rate could be lowered: attach one.")
        self._learning_rate.multiply(factor)
        rates = ", ".join(f"{value:.4g}" for value in self._learning_rate.effective())
        return f"learning rate multiplied by {factor:g}: now {rates}."

    def _trouble(self) -> None:
        if self._store is not None:
            self._store.trouble(self.step)
