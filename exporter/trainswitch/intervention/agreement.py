"""Agreement: what rank 0 is commanded, every rank carries out at the same step boundary, or none does.

Between boundaries a header of three numbers travels from rank 0 to all. It is started at one boundary and
read at a later one, so it has usually arrived and nobody waits. A header that says *meet* makes every rank
hold a meeting at the boundary where it is read, which is the same for all, because all count the boundaries.
In a meeting, for each command:

1. Rank 0 prepares it: everything that can fail is tried, and nothing is changed.
2. It shares the command and what it has chosen (the checkpoint of a rollback, say).
3. The others prepare it, and all ranks say whether they could. If one could not, none acts.
4. All act, and say how it went.

Rank 0 alone reads and writes the control folder; its answer is the answer of all. A pause is a meeting that
goes on: rank 0 speaks at least once a second, so no collective is pending for longer, however long it lasts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from trainswitch.errors import ActionRefused, AgreementLost, CheckpointError
from trainswitch.intervention import rank_group
from trainswitch.intervention.actions import Interventions, Refusal
from trainswitch.intervention.commands import Command
from trainswitch.intervention.file_group import FileGroup
from trainswitch.intervention.rank_group import MAX_DOCUMENT_BYTES, RankGroup, Word, names_of
from trainswitch.intervention.rank_restore import restore_together

logger = logging.getLogger("trainswitch")

HEADER_SECONDS = 0.1
"""Headers of fast steps are at least so far apart: the cost of one is then a small share of the time."""
MAX_STRIDE = 32
"""So that a run whose steps grow slow does not stay deaf for long."""
_TICK_SECONDS = 1.0
_SAVING = frozenset({"snapshot", "pause_and_snapshot"})
"""Actions that leave the training as it is, so that the ranks cannot come apart by them."""


class Agreement(ABC):
    """One rank's part in carrying out the commands of a run; the kinds differ in how a meeting is called."""

    def __init__(
        self,
        interventions: Interventions,
        group: RankGroup | FileGroup,
        *,
        on_lost: Callable[[AgreementLost], None],
    ) -> None:
        """Take part, from the first boundary on.

        Args:
            interventions: of this rank; its channel is open on rank 0 only.
            group: of all ranks.
            on_lost: called once, when commands can no longer be carried out by all.
        """
        self._interventions = interventions
        self._group = group
        self._on_lost = on_lost
        self._lost = False
        self._formed = False
        self._boundaries = 0

    @property
    def moment(self) -> str:
        """Name of the present boundary: the same on every rank, never used twice; empty without agreement."""
        return f"{self._group.session}:{self._boundaries}" if self._formed and not self._lost else ""

    def boundary(self, hold: Callable[[], None]) -> None:
        """Take part in a step's boundary; called by every rank at the end of every step.

        Args:
            hold: called where commands are to be carried out; calls `carry_out` until the run is not paused.
        """
        self._boundaries += 1
        if self._lost:
            if self._interventions.ready():
                hold()
            return
        try:
            self._attend(hold)
        except AgreementLost as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - the monitor's own trouble never ends a training
            self._give_up(self._group.lose(repr(error)))

    def carry_out(self) -> None:
        """Carry out, together, what can be carried out now; a part of a meeting, and never raises."""
        if self._lost:
            self._interventions.carry_out()
            return
        command: Command | None = None
        try:
            while (found := self._next_command()) is not None:
                command, chosen = found
                self._together(command, chosen)
                command = None
            self._group.gather(Word(True, ""))  # rank 0 hears of everyone, in a pause once a second
        except AgreementLost as error:
            if command is not None and self._group.rank == 0:
                self._interventions.answer(
                    command, "failed", f"{error} Whether every rank carried it out is not known."
                )
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - the monitor's own trouble never ends a training
            self._give_up(self._group.lose(repr(error)))

    def restore(self, step: int | None) -> int | None:
        """Load one checkpoint on every rank, or none anywhere; called by all before their first step.

        Args:
            step: of the checkpoint, the same on all ranks; None leaves the choice to rank 0.

        Returns:
            The step that the run goes on from; None where there is no checkpoint.

        Raises:
            TrainswitchError: no rank has loaded it, unless the message says otherwise.
        """
        if self._boundaries:
            raise ActionRefused("restore() comes too late: call it before the first step, on every rank.")
        try:
            with self._assembled() as group:
                return restore_together(group, self._interventions, step)
        except AgreementLost as error:
            self._give_up(error)
            raise

    @abstractmethod
    def _assembled(self) -> AbstractContextManager[RankGroup | FileGroup]:
        """Have all ranks meet before their first step, and give the group to talk in."""

    def wait(self, timeout: float) -> None:  # noqa: ARG002 - the pace of a pause is rank 0's
        """Wait for the next round of a meeting."""
        if self._lost or self._group.rank == 0:
            self._interventions.wait(_TICK_SECONDS)

    def close(self) -> None:
        """Leave; the other ranks are not held up by it."""
        self._lost = True
        self._group.leave()

    # ── a meeting ─────────────────────────────────────────────────────────────────────────────────────

    def _next_command(self) -> tuple[Command, dict[str, Any]] | None:
        """Return the next command that rank 0 could prepare, and what it has chosen; None at the end."""
        if self._group.rank != 0:
            document = self._group.share(None)
            if not document:
                return None
            said = json.loads(document)
            return Command.model_validate(said["command"]), said["chosen"]
        interventions = self._interventions
        while (command := interventions.next_command()) is not None:
            try:
                chosen = interventions.prepare(command, {})
                document = _document(command, chosen)
            except CheckpointError as error:
                if error.reason == "busy":  # a periodic save is being written: the same command, next time
                    break
                interventions.answer(command, *Refusal.of(error))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                interventions.answer(command, *Refusal.of(error))
            else:
                self._group.share(document)
                return command, chosen
        self._group.share(None)
        return None

    def _together(self, command: Command, chosen: dict[str, Any]) -> None:
        interventions = self._interventions
        unable = ""
        if self._group.rank != 0:
            try:
                interventions.prepare(command, chosen)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this rank's word
                unable = _sentence(error)
        objection = _objection(self._group.gather(Word(not unable, unable)))
        if objection:
            interventions.drop(command)
            self._answer(command, "failed", f"{objection} No rank has changed anything.")
            return
        trouble, detail = "", None
        try:
            detail = interventions.act(command)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this rank's word
            trouble = _sentence(error)
        words = self._group.gather(Word(not trouble, trouble))
        objection = _objection(words)
        if not objection:
            if detail is not None:
                self._answer(command, "applied", f"{detail} On all {self._group.size} ranks.")
            return
        interventions.drop(command)
        if command.action == "stop":  # a full disk is no reason to go on
            self._answer(command, "applied", f"stopped at step {interventions.step}, but: {objection}")
            return
        if any(word.ok for word in words) and command.action not in _SAVING:
            interventions.paused = True
            objection += " The other ranks have carried it out, so the run is paused: stop it and restore it."
        self._answer(command, "failed", objection)

    def _answer(self, command: Command, result: Any, detail: str) -> None:
        if self._group.rank == 0:
            self._interventions.answer(command, result, detail)

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────

    def _give_up(self, error: AgreementLost) -> None:
        self._lost = True
        self._interventions.obstacle = str(error)
        if self._interventions.paused:
            logger.error("the pause ends, because the ranks cannot end it together: %s", error)
            self._interventions.paused = False
        self._on_lost(error)

    @abstractmethod
    def _attend(self, hold: Callable[[], None]) -> None:
        """Take part in a boundary, and call `hold` where a meeting is due."""


class GroupAgreement(Agreement):
    """Agreement over a gloo group, see the module."""

    def __init__(
        self, interventions: Interventions, group: RankGroup, *, on_lost: Callable[[AgreementLost], None]
    ) -> None:
        """Take part; see `Agreement`."""
        super().__init__(interventions, group, on_lost=on_lost)
        self._headers = group
        self._announced = False
        self._next = 1
        """The boundary at which the header under way is read."""
        self._stride = 1
        self._since = time.monotonic()

    def _attend(self, hold: Callable[[], None]) -> None:
        if self._boundaries < self._next:
            return
        meet, stride = False, 1
        if self._announced:
            header = self._headers.read()
            meet, stride = header.meet, header.stride
        elif not self._formed:
            self._form("step")
        wished = self._wished_stride()
        if meet:
            hold()
            self._since = time.monotonic()
        self._announce(stride, wished)

    @contextlib.contextmanager
    def _assembled(self) -> Iterator[RankGroup]:
        """Make the group; see `Agreement`."""
        if not self._formed:
            self._form("restore")
        yield self._headers

    def _form(self, purpose: str) -> None:
        """Make the group, and find out whether all ranks have come for the same `purpose`."""
        self._headers.form()
        words = self._headers.gather(Word(True, purpose))
        without = [rank for rank, word in enumerate(words) if word.text != "restore"]
        if 0 < len(without) < len(words):
            raise AgreementLost(
                f"{names_of(without)} came to a step while others were in restore(): call it on every rank, "
                "before the first step, or on none."
            )
        self._formed = True

    def _announce(self, stride: int, wished: int) -> None:
        if self._lost:  # in the meeting
            return
        self._next = self._boundaries + stride
        self._stride = stride
        self._announced = True
        self._headers.announce(meet=self._interventions.ready(), stride=wished)

    def _wished_stride(self) -> int:
        """Return how many boundaries apart headers should be, by how long those since the last one took."""
        now = time.monotonic()
        seconds = max(now - self._since, 1e-6) / self._stride
        self._since = now
        return max(1, min(MAX_STRIDE, int(HEADER_SECONDS / seconds)))


class FileAgreement(Agreement):
    """Agreement through files: rank 0 makes an appointment for a later step, and all meet there."""

    def __init__(
        self, interventions: Interventions, group: FileGroup, *, on_lost: Callable[[AgreementLost], None]
    ) -> None:
        """Take part; see `Agreement`."""
        super().__init__(interventions, group, on_lost=on_lost)
        self._files = group
        self._began = time.monotonic()

    def _attend(self, hold: Callable[[], None]) -> None:
        if not self._formed:
            self._files.start()
            self._formed = True
        at = self._files.appointment
        if at is None:
            if self._files.rank == 0 and self._interventions.ready():
                self._make_appointment()
            return
        if self._interventions.step < at:
            return
        if self._files.decide() if self._files.rank == 0 else self._files.await_decision():
            with self._files.meeting():
                hold()

    @contextlib.contextmanager
    def _assembled(self) -> Iterator[FileGroup]:
        """Tell this start of the ranks from their last one; see `Agreement`."""
        if not self._formed:
            self._files.assemble()
            self._formed = True
        with self._files.meeting():
            yield self._files

    def _make_appointment(self) -> None:
        lasted = time.monotonic() - self._began
        absent = self._files.absent()
        if not absent:
            self._files.propose(lasted / self._boundaries)
        elif lasted > rank_group.ASSEMBLE_SECONDS:
            self._interventions.obstacle = (
                f"this run has {self._files.size} ranks, no process group, and no word in the control folder "
                f"from {names_of(absent)}: call attach() on every rank with one control folder for all."
            )
            self._interventions.carry_out()
            self._interventions.obstacle = ""


def _document(command: Command, chosen: dict[str, Any]) -> bytes:
    document = json.dumps({"command": command.model_dump(mode="json"), "chosen": chosen}).encode()
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ActionRefused(
            f"the command has {len(document)} bytes, and the ranks share at most {MAX_DOCUMENT_BYTES}: "
            "shorten its parameters."
        )
    return document


def _objection(words: tuple[Word, ...]) -> str:
    return " ".join(f"Rank {rank}: {word.text}" for rank, word in enumerate(words) if not word.ok)


def _sentence(error: Exception) -> str:
    return Refusal.of(error).detail
