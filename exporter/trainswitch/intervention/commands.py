"""The actions a trainer can be told to take, their typed and bounded parameters, and the command itself."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection
from typing import Any, ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainswitch.errors import CommandError, RunNameError

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ACTION_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""Of an action that a training script registers."""
MAX_CUSTOM_PARAMS_BYTES = 10_000
"""Of such an action's parameters, as JSON."""

MAX_NUMBER = 2**53
"""Largest step, sequence number or epoch that is believed: what every language's numbers hold exactly."""

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

    unspoken: ClassVar[frozenset[str]] = frozenset()
    """What a command leaves out while it has its default, because trainers that are older refuse the name."""

    def spoken(self) -> dict[str, Any]:
        """Return them for a command or a journal, with the defaults spelled out."""
        spoken = self.model_dump(exclude_none=True)
        for name in self.unspoken:
            if spoken.get(name) == type(self).model_fields[name].default:
                spoken.pop(name, None)
        return spoken


class NoParams(Params):
    """An action that takes no parameters."""


class ReduceLrParams(Params):
    """Parameters of ``reduce_lr``."""

    factor: float = Field(default=0.5, gt=0.0, lt=1.0)
    """What every parameter group's learning rate is multiplied by."""


class SetLrParams(Params):
    """Parameters of ``set_lr``."""

    value: float = Field(gt=0.0, le=1e3)
    """What the largest learning rate of all parameter groups becomes; the others keep their ratios to it."""


class ClipGradientsParams(Params):
    """Parameters of ``clip_gradients``."""

    max_norm: float = Field(gt=0.0)
    """Largest L2 norm of all gradients together that an optimizer step is left with."""
    steps: int | None = Field(default=None, ge=0)
    """For how many optimizer steps; without it, until the next ``clip_gradients``. 0 ends it."""


class SkipBatchesParams(Params):
    """Parameters of ``skip_batches``."""

    count: int = Field(ge=1, le=100_000)
    """How many batches are drawn and not trained on, on each rank."""


class SetSamplingParams(Params):
    """Parameters of ``set_sampling``: steps from one measurement to the next; 0 is never."""

    grad_norm: int | None = Field(default=None, ge=0)
    layers: int | None = Field(default=None, ge=0)
    weights: int | None = Field(default=None, ge=0)
    activations: int | None = Field(default=None, ge=0)
    checksum: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _something(self) -> SetSamplingParams:
        if not self.intervals():
            raise ValueError(f"give at least one of {', '.join(SetSamplingParams.model_fields)}")
        return self

    def intervals(self) -> dict[str, int]:
        """Return those that are given."""
        return self.model_dump(exclude_none=True)


class SnapshotParams(Params):
    """Parameters of ``snapshot``."""

    unspoken = frozenset({"pin"})

    pin: bool = False
    """Keep the checkpoint from rotation."""


class RollbackParams(Params):
    """Parameters of ``rollback``."""

    unspoken = frozenset({"data", "or_oldest"})

    step: int | None = Field(default=None, ge=0)
    """Load exactly the checkpoint of this step; without it, the newest stable one."""
    before_step: int | None = Field(default=None, ge=0)
    """Load the newest stable checkpoint of this step or an earlier one; not together with `step`."""
    or_oldest: bool = False
    """Where none is so old, load the oldest stable one instead of refusing; together with `before_step`."""
    data: Literal["skip", "rewind"] = "skip"
    """``skip``: the data goes on after the last batches that were trained on; ``rewind``: it goes back."""
    lr_factor: float | None = Field(default=None, gt=0.0, le=1.0)
    """Multiply the learning rate after loading, as ``reduce_lr`` does."""

    @model_validator(mode="after")
    def _one_choice(self) -> RollbackParams:
        if self.step is not None and self.before_step is not None:
            raise ValueError("step names one checkpoint and before_step leaves the choice: give one of them")
        if self.or_oldest and self.before_step is None:
            raise ValueError("or_oldest says what to do without one before before_step: give that, too")
        return self


class StopParams(Params):
    """Parameters of ``stop``."""

    snapshot: bool = True
    """Save a checkpoint before the loop ends."""


ACTIONS: dict[str, type[Params]] = {
    "pause": NoParams,
    "resume": NoParams,
    "snapshot": SnapshotParams,
    "pause_and_snapshot": NoParams,
    "reduce_lr": ReduceLrParams,
    "set_lr": SetLrParams,
    "clip_gradients": ClipGradientsParams,
    "skip_batches": SkipBatchesParams,
    "set_sampling": SetSamplingParams,
    "rollback": RollbackParams,
    "stop": StopParams,
}
"""Every built-in action by its name on the wire, with the type of its parameters."""


def check_action(
    action: str, params: dict[str, Any] | None = None, *, custom: Collection[str] = (), where: str = ""
) -> Params:
    """Return the parsed parameters of a built-in `action`.

    Args:
        action: its name.
        params: as they came.
        custom: names that would have been right besides the built-in ones.
        where: a sentence on where such names come from, for people.

    Raises:
        CommandError: the action does not exist, or a parameter is unknown or out of bounds; the message
            names the nearest action, or the parameter and its bound.
    """
    if action not in ACTIONS:
        known = [*ACTIONS, *custom]
        near = difflib.get_close_matches(action, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}."
        raise CommandError(f"action {action[:80]!r} does not exist: {hint}{where and f' {where}'}")
    return parse_params(action, ACTIONS[action], params)


def checked_params(
    action: str, params: dict[str, Any] | None = None, *, custom: Collection[str] = (), where: str = ""
) -> dict[str, Any]:
    """Return the parameters of `action` with the defaults spelled out, for a command or a journal.

    Those of a name in `custom` are the trainer's to judge: here they have to be JSON of a bounded size.

    Raises:
        CommandError: see `check_action`; or a custom action's parameters are not JSON, or too large.
    """
    if action in ACTIONS or action not in custom:
        return check_action(action, params, custom=custom, where=where).spoken()
    params = params or {}
    try:
        size = len(json.dumps(params, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise CommandError(f"the parameters of action {action!r} are not JSON: {error}.") from None
    if size > MAX_CUSTOM_PARAMS_BYTES:
        raise CommandError(
            f"the parameters of action {action!r} have {size} bytes as JSON, more than "
            f"{MAX_CUSTOM_PARAMS_BYTES}: name a file instead of sending its content."
        )
    return params


def check_action_name(name: str) -> str:
    """Return `name` if a custom action can have it.

    Raises:
        CommandError: it does not match ``[a-z][a-z0-9_]{0,63}``, or is a built-in action's.
    """
    if not ACTION_NAME.fullmatch(name):
        raise CommandError(
            f"action name {name[:80]!r} is not allowed: use 1 to 64 of a to z, 0 to 9 and '_', beginning "
            "with a letter."
        )
    if name in ACTIONS:
        raise CommandError(f"action {name!r} is a built-in one: choose another name.")
    return name


AnyParams = TypeVar("AnyParams", bound=BaseModel)


def parse_params(action: str, model: type[AnyParams], params: dict[str, Any] | None) -> AnyParams:
    """Return `params` as a `model`.

    Raises:
        CommandError: one is unknown or out of bounds; the message names it and its bound.
    """
    try:
        return model.model_validate(params or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "params"
        allowed = ", ".join(model.model_fields) or "none"
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
    seq: int = Field(ge=1, le=MAX_NUMBER)
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
