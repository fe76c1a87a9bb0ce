"""The thread that looks: while this controller leads, it lets time pass and has commands carried."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import select

from trainswitch_controller import intake, open_commands, orders, runs
from trainswitch_controller.carrying import Carrier
from trainswitch_controller.errors import ControllerError, LeadershipLost
from trainswitch_controller.leadership import Alone, Leadership
from trainswitch_controller.ledger import Ledger
from trainswitch_controller.problems import Problems
from trainswitch_controller.records import CommandRecord, EpisodeRecord
from trainswitch_controller.term import change_in_term, take_epoch
from trainswitch_controller.unit import Unit

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_LONGEST_REST_S = 1.0


class Dispatcher:
    """One thread that looks every `interval` seconds, and at once after `wake`.

    Whatever fails is reported once, counted, and tried again at the next look; nothing is dropped before its
    expiry.
    """

    def __init__(
        self,
        ledger: Ledger,
        policy_sha256: str,
        interval: float,
        leadership: Leadership | None = None,
        on_lead: Callable[[], None] = lambda: None,
    ) -> None:
        """Dispatch for `ledger` while `leadership` is held; `on_lead` is called when it has been taken."""
        self.follows = False
        """Another controller leads: this one takes in alerts and orders, and writes no file."""
        self._ledger = ledger
        self._policy_sha256 = policy_sha256
        self._leadership = leadership or Alone()
        self._on_lead = on_lead
        self._opened = False
        self._interval = interval
        self._carrier: Carrier | None = None
        self._problems = Problems()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainswitch-dispatcher", daemon=True)

    @property
    def epoch(self) -> int | None:
        """Fencing number of this term; None before a term, and while another controller leads."""
        carrier = self._carrier
        return None if carrier is None else carrier.epoch

    def start(self) -> None:
        """Look regularly from a thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after a last look, so that what was committed is written."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()
        self._leadership.release()

    def wake(self) -> None:
        """Look now: something was committed. Whoever leads looks; others find nothing to do."""
        if not self.follows:
            self._wake.set()

    def problems(self) -> list[str]:
        """Return what stands in the way of any command; a run whose folder is missing does not."""
        return [text for name, text in self._problems.all().items() if not name.startswith("run ")]

    def tick(self) -> None:
        """Look once: who leads decides again what has cooled down, takes in answers, and writes commands.

        Raises:
            LeadershipLost: another controller leads since a moment ago.
            ControllerError: the journal or the control folder is not usable.
        """
        if not self._opened:
            self._ledger.journal.open()
            self._opened = True
        if self._ledger.journal.problem is not None:
            self._ledger.journal.probe()
        if not self._leads():
            return
        if self._ledger.journal.shared:
            self._ledger.journal.read(self._ledger.metrics.responses.catch_up)
        self._let_time_pass()
        assert self._carrier is not None  # because it leads
        waiting: dict[str, list[CommandRecord]] = {run: [] for run in self._carrier.loaded()}
        for command in self._ledger.journal.read(open_commands.of_all_runs):
            waiting.setdefault(command.run, []).append(command)
        for run, commands in waiting.items():
            self._carrier.serve(run, commands)

    def look(self) -> None:
        """Do what `tick` does; what stands in its way is reported and tried again at the next look."""
        try:
            self.tick()
        except LeadershipLost as error:
            log.warning("%s", error)
            self._step_down()
        except ControllerError as error:
            self._problems.report("dispatcher", str(error))
        except Exception as error:
            # The thread must outlive any fault: it says so, and the controller is not ready.
            if self._problems.report(
                "dispatcher", f"the dispatcher failed: {error!r}; this is a bug, see the log."
            ):
                log.exception("dispatcher failed")
        else:
            self._problems.report("dispatcher", None)

    # --- the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._interval)
            self._wake.clear()
            begun = time.monotonic()
            self.look()
            # In a storm there is always something to look at: leave alerts as much time as looking has taken.
            self._stopping.wait(min(time.monotonic() - begun, _LONGEST_REST_S))
        self.look()

    # --- who leads ------------------------------------------------------------------------------------------

    def _leads(self) -> bool:
        """Take or keep the lead, and return whether this controller has it."""
        if not self._leadership.hold():
            if self.epoch is not None:
                log.warning("epoch %d has ended: another controller leads, this one follows.", self.epoch)
            self._step_down()
            return False
        if self.epoch is None:
            try:
                self._reconcile()
            except ControllerError:
                self._leadership.release()  # another one may be able to
                raise
        return True

    def _stay(self) -> None:
        """Make sure that this controller leads still, right before it writes."""
        if not self._leadership.hold():
            term = "a term has ended as it began" if self.epoch is None else f"epoch {self.epoch} has ended"
            raise LeadershipLost(f"{term}: this controller leads no more and follows.")

    def _step_down(self) -> None:
        self.follows = True
        self._carrier = None  # somebody else may write from now on
        self._problems.clear()
        self._ledger.metrics.lead(leads=False)

    def _reconcile(self) -> None:
        """Begin a term: take a new epoch, and learn what the command files hold."""
        names = runs.list_runs(self._ledger.control_dir)
        seen = 0
        for run in names:
            self._stay()
            seen = max(seen, runs.highest_epoch(self._ledger.control_dir, run))
        epoch = take_epoch(self._ledger, self._policy_sha256, above=seen)
        carrier = Carrier(self._ledger, epoch, self._problems, self._stay)
        for run in names:
            carrier.take_over(run)
        self._carrier = carrier
        self.follows = False
        self._on_lead()
        self._ledger.metrics.lead(leads=True)
        log.info("reconciled: epoch %d, %d runs in %s", epoch, len(names), self._ledger.control_dir)

    def _change(self, work: Callable[[Unit], Result]) -> Result:
        """Change the journal, unless this controller leads no more."""
        assert self.epoch is not None
        self._stay()  # a leader that is silent for long, over many changes, loses its place
        return change_in_term(self._ledger, self.epoch, work)

    # --- what only time decides -----------------------------------------------------------------------------

    def _let_time_pass(self) -> None:
        now = self._ledger.now()
        cooled = select(EpisodeRecord.id).where(
            intake.is_due(self._ledger.policy, now), EpisodeRecord.resolved_at.is_(None)
        )
        unapproved = select(CommandRecord).where(
            CommandRecord.state == "awaiting_approval", CommandRecord.expires_at <= now
        )
        if self._ledger.journal.read(lambda session: session.scalar(cooled.limit(1))) is not None:
            self._reconsider()
        if self._ledger.journal.read(lambda session: session.scalar(unapproved.limit(1))) is None:
            return

        def expire(unit: Unit) -> None:
            for command in unit.session.scalars(unapproved).all():
                orders.finish(unit, command, "expired", at=now, detail="nobody approved it in time.")

        self._change(expire)

    def _reconsider(self) -> None:
        beyond: int | None = 0
        while beyond is not None:
            judged, beyond = self._change(functools.partial(intake.reconsider, beyond=beyond))
            self._ledger.note(judged)
