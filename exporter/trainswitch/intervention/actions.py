"""Interventions: carries the channel's commands out at a step boundary, in their order, and answers them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from trainswitch.errors import ActionRefused, CheckpointError, CommandError, ConfigError, TrainswitchError
from trainswitch.intervention.channel import ControlChannel
from trainswitch.intervention.commands import (
    Command,
    CommandOutcome,
    CommandResult,
)
from trainswitch.intervention.run_actions import RunActions, RunParts

if TYPE_CHECKING:
    from trainswitch.intervention.control_file import CheckpointEntry

logger = logging.getLogger("trainswitch")

MAX_DETAIL = 1000
"""Characters of an answer: 200 of them have to fit into ``status.json``."""

_SUPERSEDED_BY = {"pause": ("resume", "stop")}
"""A command that has not been carried out yet is superseded by a later one of these."""


class Refusal(NamedTuple):
    """Why a command was not carried out."""

    result: CommandResult
    detail: str

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """Return the answer that `error` means: ``refused`` where nothing was tried, else ``failed``."""
        if isinstance(error, ActionRefused | CommandError | ConfigError):
            return cls("refused", str(error))
        if isinstance(error, TrainswitchError):
            return cls("failed", str(error))
        logger.error("a command failed", exc_info=error)
        return cls("failed", f"{type(error).__name__}: {error}")


class Interventions(RunActions):
    """Takes the channel's commands one after the other and answers each exactly once.

    A snapshot is written by the checkpoint store's thread and answered when it is durable; the commands
    behind it wait for that, training does not.
    """

    def __init__(
        self,
        channel: ControlChannel,
        parts: RunParts,
        *,
        on_answer: Callable[[CommandOutcome, float], None],
        on_restored: Callable[[int, dict[str, Any]], None] = lambda _step, _meta: None,
    ) -> None:
        """Wire the parts together.

        Args:
            channel: where commands come from and answers go.
            parts: of the run.
            on_answer: called with each answer and the seconds since the command was issued.
            on_restored: see `RunActions`.
        """
        super().__init__(parts, on_restored=on_restored)
        self._channel = channel
        self._on_answer = on_answer
        self.obstacle = ""
        """Why no command can be carried out at all, for people; empty where they can."""

    def carry_out(self) -> None:
        """Carry out what can be carried out now; never raises for a command's sake."""
        while (command := self.next_command()) is not None:
            if not self._begin(command):
                return

    # ── the same in parts, for ranks that do each part together; see `agreement` ────────────────────────

    def ready(self) -> bool:
        """Return whether a command can be begun; a snapshot whose save has ended is answered first."""
        if (ended := self._states.take_ended(self.step)) is not None:
            self.answer(*ended)
        return bool(self._channel.pending) and not self._states.writing

    def next_command(self) -> Command | None:
        """Return the next command that is to be carried out now; those that are moot are answered."""
        while self.ready():
            command = self._channel.pending[0]
            given = self._channel.inherited(command)
            if given is not None:
                logger.warning("%s is in effect since step %d already.", command.action, given.step)
                self._channel.answer(given)
                continue
            refusal = self._reason_not_to(command)
            if refusal is None:
                return command
            self.answer(command, *refusal)
        return None

    # ── what a run needs besides ────────────────────────────────────────────────────────────────────────

    def wait(self, timeout: float) -> None:
        """Sleep until there is something to carry out, at most `timeout` seconds."""
        if self._channel.pending:  # and not carried out yet: a save is in its way
            self._states.wait_saved(timeout)
        else:
            self._channel.wait(timeout)

    def restore(self, step: int | None) -> CheckpointEntry:
        """Load a checkpoint at the start of a session, and the answers that were given until then.

        Raises:
            ActionRefused: there is nothing to load into.
            CheckpointError: the checkpoint is not there or cannot be loaded.
        """
        meta, entry = self.go_on_from(step)
        self._channel.inherit(meta.get("answers", ()))
        return entry

    def _begin(self, command: Command) -> bool:
        """Carry `command` out, and return whether the next one may follow."""
        try:
            detail = self.act(command)
        except CheckpointError as error:
            if error.reason == "busy":  # a periodic save is being written: the same command, next time
                return False
            self.answer(command, *self._states.unsaved(command, error, self.step))
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
        # An error may quote a file's name that is no valid text, which no JSON holds.
        detail = detail.encode(errors="replace").decode()[:MAX_DETAIL]
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
