"""What happens in a demo: train, poison, wait for the intervention, act as the operator, train to the end."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.demo.trainers import Trainer
from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.evidence import Evidence, Timeline
from trainswitch_controller.cli.waiting import wait_for_answer

TOLERANCE = 0.05
"""A run counts as recovered when its validation loss is at most this much above the unfaulted run's."""
_TICK_S = 0.2
_INTERVENTION_TIMEOUT_S = 45.0
_SETTLE_S = 2.0
_ANSWER_TIMEOUT_S = 30.0

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a demo ended."""

    fault: str
    fault_step: int | None
    timeline: Timeline
    interventions: list[dict[str, Any]]
    """Commands that alerts led to and that were carried out, on any run."""
    operator: list[dict[str, Any]]
    """Commands that the demo gave as the operator."""
    val_loss: float | None
    unfaulted_val_loss: float | None

    @property
    def recovered(self) -> bool:
        """Whether the run ended close to, or better than, the unfaulted one."""
        if self.val_loss is None or self.unfaulted_val_loss is None:
            return False
        return self.val_loss <= self.unfaulted_val_loss * (1.0 + TOLERANCE)

    def failures(self) -> list[str]:
        """Return a sentence for each thing that did not go as it should."""
        missing = []
        if self.fault == "none":
            missing += [f"the healthy run was met with {row['action']}." for row in self.interventions]
        else:
            unseen = [name for name, at in self.timeline.stages().items() if at is None]
            missing += [f"the stage {name!r} was not seen in the part that owns it." for name in unseen]
        if not self.recovered:
            missing.append(
                f"the validation loss is {self.val_loss}, and {self.unfaulted_val_loss} without the fault."
            )
        return missing


class Scenario:
    """One demo on a stack that is up."""

    def __init__(
        self, trainer: Trainer, twin: Trainer | None, evidence: Evidence, client: ControllerClient, say: Say
    ) -> None:
        """Watch `trainer` and its unfaulted `twin`; tell what happens by `say`."""
        self._trainer = trainer
        self._twin = twin
        self._evidence = evidence
        self._client = client
        self._say = say
        self._operator: list[dict[str, Any]] = []

    def play(self, fault: str, fault_step: int, show: Say) -> Outcome:
        """Go through the demo; `show` gets a line about where it stands several times a second.

        Raises:
            StackError: a trainer or a part of the stack failed.
        """
        if fault != "none":
            self._until_fault(show)
            self._until_intervention(fault_step, show)
            self._operate(fault_step)
        for _ in self._ticks(show, "training on"):
            if not self._trainer.running and (self._twin is None or not self._twin.running):
                break
            if fault != "none":
                self._evidence.collect(self._trainer.fault_at or 0.0, fault_step)
        self._check_trainers()
        runs = [self._trainer.run] + ([self._twin.run] if self._twin is not None else [])
        interventions = [
            row
            for run in runs
            for row in reversed(self._client.commands(run, 1000))
            if row["source"] == "alert" and row["state"] == "applied"
        ]
        return Outcome(
            fault=fault,
            fault_step=fault_step if fault != "none" else None,
            timeline=self._evidence.timeline,
            interventions=interventions,
            operator=self._operator,
            val_loss=self._trainer.val_loss,
            unfaulted_val_loss=(self._twin or self._trainer).val_loss,
        )

    def _until_fault(self, show: Say) -> None:
        for _ in self._ticks(show, "healthy so far"):
            if self._trainer.fault_at is not None:
                self._say("The fault has struck.")
                return
            if not self._trainer.running:
                raise StackError("the trainer ended before the fault was due: give it more --steps.")

    def _until_intervention(self, fault_step: int, show: Say) -> None:
        assert self._trainer.fault_at is not None
        deadline = time.monotonic() + _INTERVENTION_TIMEOUT_S
        for _ in self._ticks(show, "poisoned, waiting for the switch"):
            timeline = self._evidence.collect(self._trainer.fault_at, fault_step)
            if timeline.applied is not None:
                command = self._evidence.commands("alert")[0]
                self._say(f"{command['alertname']} fired; the switch answered with {command['action']}.")
                return
            if time.monotonic() > deadline:
                raise StackError(
                    f"no intervention within {_INTERVENTION_TIMEOUT_S:.0f} s of the fault; seen so far: "
                    f"{timeline.since_fault()}."
                )

    def _operate(self, fault_step: int) -> None:
        """Do what a person would do now: keep the evidence, go back, go on more carefully."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:  # a second alert about the same fault may lead to more
            time.sleep(_TICK_S)
            self._evidence.collect(self._trainer.fault_at or 0.0, fault_step)
        actions = [row["action"] for row in self._evidence.commands("alert")]
        if "rollback" in actions:
            return  # the policy does not wait for a person
        status = self._evidence.status()
        if status is None or status.state != "paused":
            self._give("pause", {})
        if "pause_and_snapshot" not in actions:
            self._give("snapshot", {})
        self._give("rollback", {})
        if "reduce_lr" not in actions:
            self._give("reduce_lr", {"factor": 0.8})
        self._give("resume", {})

    def _give(self, action: str, params: dict[str, Any]) -> None:
        command = self._client.issue(self._trainer.run, action, params, "demo: what an operator would do")
        command = wait_for_answer(self._client, command, _ANSWER_TIMEOUT_S)
        self._say(f"operator: {action}: {command['state']}: {command['detail']}")
        if command["state"] != "applied":
            raise StackError(f"{action} of {self._trainer.run} was {command['state']}: {command['detail']}")
        self._operator.append(command)

    def _ticks(self, show: Say, what: str) -> Iterator[None]:
        """Yield a few times a second, showing where the runs stand."""
        while True:
            self._check_trainers()
            status = self._evidence.status()
            loss = self._evidence.loss()
            step = status.step if status is not None else 0
            at = f"loss {loss:.3f}" if loss is not None else "starting"
            show(f"{self._trainer.run}: step {step}/{self._trainer.steps}, {at} — {what}")
            yield
            time.sleep(_TICK_S)

    def _check_trainers(self) -> None:
        self._trainer.check()
        if self._twin is not None:
            self._twin.check()
