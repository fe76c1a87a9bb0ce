"""RunActions: what each action does to the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from trainswitch.intervention.clipping import GradientClip
from trainswitch.intervention.commands import (
    ACTIONS,
    Command,
    NoParams,
    ReduceLrParams,
    RollbackParams,
    SetLrParams,
    SnapshotParams,
    StopParams,
    check_action,
)
from trainswitch.intervention.custom_actions import CustomActions
from trainswitch.intervention.data_feed import DataFeed
from trainswitch.intervention.deeds import Deed
from trainswitch.intervention.rate_actions import RateActions
from trainswitch.intervention.state_actions import StateActions

if TYPE_CHECKING:
    from trainswitch.intervention.control_file import CheckpointEntry


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """What the actions work on."""

    states: StateActions
    """Saves the run and loads its checkpoints."""
    rates: RateActions
    """Change the learning rate."""
    clip: GradientClip
    """Says what gradients are clipped to."""
    feed: DataFeed
    """The batches of the loop."""
    sampling: Deed
    """``set_sampling``."""


class RunActions:
    """Where the run stands, and every action that changes it. Which commands there are is no part of it."""

    def __init__(
        self,
        parts: RunParts,
        *,
        on_restored: Callable[[int, dict[str, Any]], None] = lambda _step, _meta: None,
    ) -> None:
        """Wire the parts together.

        Args:
            parts: of the run.
            on_restored: called with the step and the meta of a checkpoint that was loaded.
        """
        self._states = states = parts.states
        self._rates = rates = parts.rates
        self._clip = clip = parts.clip
        self._feed = feed = parts.feed
        self._on_restored = on_restored
        self.step = 0
        """Step at whose boundary the run stands; a rollback sets it back."""
        self.paused = False
        self.stopping = False
        self._handlers: dict[str, Callable[[Command, Any], str | None]] = {
            "pause": self._pause,
            "resume": self._resume,
            "snapshot": self._snapshot,
            "pause_and_snapshot": self._pause_and_snapshot,
            "rollback": self._rollback,
            "stop": self._stop,
        }
        self._checks: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
            "snapshot": states.check_snapshot,
            "pause_and_snapshot": states.check_snapshot_at_once,
            "rollback": self._prepare_rollback,
            "stop": states.check_stop,
        }
        """What tries them, where anything can keep them from being carried out."""
        self._deeds = {
            "reduce_lr": Deed(check=lambda _: rates.check_multiply(), act=self._reduce_lr),
            "set_lr": Deed(check=lambda params: rates.check_set(params.value), act=self._set_lr),
            "clip_gradients": Deed(check=clip.check, act=clip.act),
            "skip_batches": Deed(check=feed.check_skip, act=feed.skip),
            "set_sampling": parts.sampling,
        }
        self.custom = CustomActions()
        """What the training script has registered."""
        assert self._handlers.keys() | self._deeds.keys() == ACTIONS.keys()

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
        deed, params = self._read(command)
        if deed is not None:
            deed.check(params)
            return {}
        check = self._checks.get(command.action)
        return check(params, chosen) if check is not None else {}

    def act(self, command: Command) -> str | None:
        """Carry out `command`, and return what was done; None where a save has to end before it is answered.

        Raises:
            TrainswitchError: it did not work.
        """
        try:
            deed, params = self._read(command)
            if deed is None:
                return self._handlers[command.action](command, params)
            deed.check(params)
            return deed.act(params)
        finally:
            self._states.forget_prepared()

    def _read(self, command: Command) -> tuple[Deed | None, Any]:
        """Return the deed, where `command` is one, and the parameters that it takes."""
        custom = self.custom.get(command.action)
        if custom is not None:
            return custom, command.params
        params = check_action(command.action, command.params, custom=self.custom.names)
        return self._deeds.get(command.action), params

    def drop(self, command: Command) -> None:
        """Forget what was prepared or begun for `command`; it is answered otherwise."""
        self._states.forget_prepared()
        self._states.forget_save(command)

    def capture(self) -> dict[str, Any]:
        """Copy the run's state to host memory.

        Raises:
            ActionRefused: there is nothing to save.
            CheckpointError: a part of the state cannot be saved.
        """
        return self._states.capture(self.step)

    def prepare_restore(self, step: int | None, chosen: dict[str, Any]) -> dict[str, Any] | None:
        """Try whatever could keep this rank from a `restore`, see `prepare`; nothing is changed.

        Returns:
            What the other ranks need to know to do the same; None where there is no checkpoint, and none was
            asked for.

        Raises:
            TrainswitchError: this rank cannot load it.
        """
        if step is None and not chosen and self._states.empty():
            return None
        return self._states.prepare(_resumption(step), chosen)

    def forget_prepared(self) -> None:
        """Forget what `prepare_restore` has read."""
        self._states.forget_prepared()

    def go_on_from(self, step: int | None) -> tuple[dict[str, Any], CheckpointEntry]:
        """Load a checkpoint at the start of a session: as a rollback does, and what that leaves alone, too.

        Returns:
            Its meta and entry.

        Raises:
            ActionRefused: there is nothing to load into.
            CheckpointError: the checkpoint is not there or cannot be loaded.
        """
        try:
            meta, entry = self._load(_resumption(step))
        finally:
            self.forget_prepared()
        self._rates.restore(meta["learning_rate_factor"])
        self._clip.restore(meta.get("clipping"))
        return meta, entry

    # ── the actions; each returns what it did, or None when that takes until a later boundary ──────────

    def _pause(self, _command: Command, _params: NoParams) -> str:
        self.paused = True
        self._states.trouble(self.step)
        return f"paused at step {self.step}."

    def _resume(self, _command: Command, _params: NoParams) -> str:
        was_paused, self.paused = self.paused, False
        return f"resumed at step {self.step}." if was_paused else "the run was not paused."

    def _snapshot(self, command: Command, params: SnapshotParams) -> str | None:
        self._save(command, "saved step {step}.", pin=params.pin)
        return None

    def _pause_and_snapshot(self, command: Command, _params: NoParams) -> str | None:
        self.paused = True
        self._states.trouble(self.step)
        self._save(command, "paused and saved step {step}.")
        return None

    def _reduce_lr(self, params: ReduceLrParams) -> str:
        detail = self._rates.multiply(params.factor)
        if not self.paused:  # right after a rollback there is nothing to suspect
            self._states.trouble(self.step)
        return detail

    def _set_lr(self, params: SetLrParams) -> str:
        lower = self._rates.lowers(params.value)
        detail = self._rates.set(params.value)
        if lower and not self.paused:
            self._states.trouble(self.step)
        return detail

    def _rollback(self, _command: Command, params: RollbackParams) -> str:
        self._states.checkpoints()
        self._check_rollback(params)
        self._states.trouble(self.step)  # what was saved shortly before; the one to be loaded is not touched
        before = self.step
        _, entry = self._load(params)
        detail = f"rolled back from step {before} to the {entry.kind} checkpoint of step {self.step}."
        if params.before_step is not None and self.step > params.before_step:
            detail += f" The run keeps no stable one from step {params.before_step} or before."
        if params.data == "rewind":
            self._feed.rewind()
            detail += " The data goes back, too."
        if params.lr_factor is not None:
            # The factor of the checkpoint is not restored: what was lowered since stays lowered.
            detail += " " + self._rates.multiply(params.lr_factor)
        return detail

    def _stop(self, command: Command, params: StopParams) -> str | None:
        self.paused = False
        self.stopping = True
        if params.snapshot and self._states.saves():
            self._states.finish()  # the loop ends now: no later boundary can save
            self._save(command, "stopped and saved step {step}.")
            return None
        return f"stopped at step {self.step}."

    # ── what they share ───────────────────────────────────────────────────────────────────────────────

    def _prepare_rollback(self, params: RollbackParams, chosen: dict[str, Any]) -> dict[str, Any]:
        self._check_rollback(params)
        return self._states.check_rollback(params, chosen, self.step)

    def _check_rollback(self, params: RollbackParams) -> None:
        if params.lr_factor is not None:
            self._rates.check_multiply()
        if params.data == "rewind":
            self._feed.check_rewind()
            self._states.check_rewind()

    def _load(self, which: RollbackParams) -> tuple[dict[str, Any], CheckpointEntry]:
        """Load a checkpoint into the run, whose steps go on from there; return its meta and entry."""
        meta, entry = self._states.load(which)
        self.step = int(meta["step"])
        self._on_restored(self.step, meta)
        return meta, entry

    def _save(self, command: Command, detail: str, *, pin: bool = False) -> None:
        kind: Literal["suspect", "probation"] = "suspect" if self.paused else "probation"
        self._states.save(command, detail, self.step, kind, pin=pin)


def _resumption(step: int | None) -> RollbackParams:
    """Return what `restore` asks for: the checkpoint of `step` or the newest stable one, data and all."""
    return RollbackParams(step=step, data="rewind")
