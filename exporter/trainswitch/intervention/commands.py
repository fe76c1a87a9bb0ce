"""The actions a trainer can be told to take, their typed and bounded parameters, and the command itself."""

from __future__ import annotations

import difflib
import re
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainswitch.errors import CommandError, RunNameError

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

CommandResult = Literal["applied", "refused", "failed", "expired", "superseded"]
RESULTS: tuple[CommandResult, ...] = get_args(CommandResult)

RunState = Literal[
    "init", "running", "evaluating", "checkpointing", "paused", "stopped", "finished", "crashed", "hung"
]
RUN_STATES: tuple[RunState, ...] = get_args(RunState)
ENDED_STATES: frozenset[RunState] = frozenset({"stopped", "finished", "crashed"})


def check_run_name(run: str) -> str:
    """Return `run` if it can be a folder name and a label value.

    Raises:
        RunNameError: it does not match ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``.
    """
    if not RUN_NAME.fullmatch(run):
        raise RunNameError(
            f"run name {run[:140]!r} is not allowed: use 1 to 128 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit."
        )
    return run


class Params(BaseModel):
    """Base of every action's parameters: unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


class NoParams(Params):
    """An action that takes no parameters."""


class ReduceLrParams(Params):
    """Parameters of ``reduce_lr``."""

    factor: float = Field(default=0.5, gt=0.0, lt=1.0)
    """What every parameter group's learning rate is multiplied by."""


class RollbackParams(Params):
    """Parameters of ``rollback``."""

    step: int | None = Field(default=None, ge=0)
    """Load exactly the checkpoint of this step; without it, the newest stable one."""
    before_step: int | None = Field(default=None, ge=0)
    """Load the newest stable checkpoint of this step or an earlier one; not together with `step`."""
    lr_factor: float | None = Field(default=None, gt=0.0, le=1.0)
    """Multiply the learning rate after loading, as ``reduce_lr`` does."""

    @model_validator(mode="after")
    def _one_choice(self) -> RollbackParams:
        if self.step is not None and self.before_step is not None:
            raise ValueError("step names one checkpoint and before_step leaves the choice: give one of them")
        return self


class StopParams(Params):
    """Parameters of ``stop``."""

    snapshot: bool = True
    """Save a checkpoint before the loop ends."""


ACTIONS: dict[str, type[Params]] = {
    "pause": NoParams,
    "resume": NoParams,
    "snapshot": NoParams,
    "pause_and_snapshot": NoParams,
    "reduce_lr": ReduceLrParams,
    "rollback": RollbackParams,
    "stop": StopParams,
}
"""Every action by its name on the wire, with the type of its parameters."""


def check_action(action: str, params: dict[str, Any] | None = None) -> Params:
    """Return the parsed parameters of `action`.

    Raises:
        CommandError: the action does not exist, or a parameter is unknown or out of bounds; the message
            names the nearest action, or the parameter and its bound.
    """
    if action not in ACTIONS:
        near = difflib.get_close_matches(action, ACTIONS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(ACTIONS)}."
        raise CommandError(f"action {action[:80]!r} does not exist: {hint}")
    try:
        return ACTIONS[action].model_validate(params or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "params"
        allowed = ", ".join(ACTIONS[action].model_fields) or "none"
        raise CommandError(
            f"parameter {where!r} of action {action!r} is not valid: {first['msg']} "
            f"(got {str(first.get('input'))[:80]!r}; allowed parameters: {allowed})."
        ) from None


class Command(BaseModel):
    """One command of ``commands.json``.

    `action` and `params` stay unchecked here, so that one bad command is refused on its own and does not
    make its whole file unreadable; `check_action` checks them where they are carried out.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    id: str = Field(min_length=1, max_length=128)
    """Unique name of the command, chosen by the controller."""
    seq: int = Field(ge=1)
    """Position in the run's life: each command has one more than the command before it."""
    action: str = Field(max_length=128)
    params: dict[str, Any] = Field(default_factory=dict)
    reason: str = Field(default="", max_length=2000)
    """Why it was issued, for people: the alert, or the operator's words."""
    issued_at: float
    """Unix seconds."""
    expires_at: float
    """Unix seconds; a trainer that reads the command later answers ``expired``."""


class CommandOutcome(BaseModel):
    """What became of one command; an entry of ``results`` in ``status.json``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    seq: int
    action: str
    result: CommandResult
    step: int
    """The step at whose boundary it was carried out."""
    at: float
    """Unix seconds."""
    detail: str = ""
    """One sentence: what was done, or why not."""
