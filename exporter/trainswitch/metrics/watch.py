"""What the trainer does, as seen from outside of it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from trainswitch.config import SidecarConfig
from trainswitch.intervention.commands import RunState
from trainswitch.processes import ProcessState, Seen
from trainswitch.recording.records import Kind, Record, Value

RUN_STATE_SEEN: dict[ProcessState, RunState] = {"hung": "hung", "suspended": "hung", "died": "crashed"}
"""What a process's state says about the run, whatever the run itself said last."""

_BY_THE_LOOP = frozenset(
    (Kind.STEP, Kind.LEARNING_RATE, Kind.STATE, Kind.PHASE, Kind.EVALUATION, Kind.COMMAND)
)
"""Records that only the training thread writes; the control channel's thread goes on while that one hangs."""
_RECENT_STEPS = 64
_FIRST_STEPS = 5
_LONGEST_TICK_SECONDS = 1.5


class TrainerWatch:
    """Tells a trainer that runs from one that hangs, is suspended, has died, or has ended."""

    def __init__(
        self,
        config: SidecarConfig,
        look: Callable[[], Seen],
        ended: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to watch.

        Args:
            config: when a trainer counts as hanging.
            look: tells whether the trainer's process lives.
            ended: tells whether the trainer has said goodbye.
            clock: in seconds.
        """
        self._config = config
        self._look = look
        self._ended = ended
        self._clock = clock
        self._looked_at = clock()
        self._idle = 0.0
        self._heard = self._heard_before = 0
        self._steps = 0
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._state = "init"

    def hear(self, record: Record) -> None:
        """Take note of a record; called by the aggregator's thread."""
        if record.kind not in _BY_THE_LOOP:
            return
        if record.kind == Kind.STEP:
            self._steps += 1
            seconds = record.get(Value.STEP_SECONDS)
            if seconds is not None and math.isfinite(seconds):
                self._seconds.append(seconds)
        elif record.kind == Kind.STATE:
            self._state = record.label
        self._heard += 1

    def state(self) -> ProcessState:
        """Return what the trainer does now; to be asked about once a second."""
        seen = self._look()
        now = self._clock()
        # A machine that slept, or a watch that was held itself, is no evidence against the trainer.
        passed = min(now - self._looked_at, _LONGEST_TICK_SECONDS)
        self._looked_at = now
        if self._heard != self._heard_before:
            self._heard_before = self._heard
            self._idle = 0.0
        elif seen == "alive":
            self._idle += passed
        if self._ended():  # asked after the look: between the two, it may have ended and gone
            return "ended"
        if seen == "dead":
            return "died"
        if seen == "suspended":
            return "suspended"
        return "hung" if self._hangs() else "running"

    def _hangs(self) -> bool:
        # The first steps compile, and outside of "running" nobody knows how long anything may take.
        if self._state != "running" or self._steps < _FIRST_STEPS or not self._seconds:
            return False
        seconds = self._seconds.copy()  # the aggregator's thread appends
        limit = self._config.hang_factor * sum(seconds) / len(seconds)
        return self._idle > max(self._config.hang_seconds, limit)
