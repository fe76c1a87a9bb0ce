"""A wave of runs at once under one real stack, with the repository's own rules, routes and policy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.gauntlet.evidence import Witness
from benchmarks.gauntlet.hook import RestartHook
from benchmarks.gauntlet.launcher import Launcher
from benchmarks.gauntlet.spec import Spec
from benchmarks.gauntlet.verdict import Outcome, outcome_of
from trainswitch.errors import TrainswitchError
from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.stack import Stack, start_stack, stop_stack

POLICY = "autonomous.yml"
_TICK_S = 0.5
_BETWEEN_STARTS_S = 2.0
"""Importing PyTorch takes a core for about so long."""
_HOOK_EVERY_S = 5.0
_PAUSED_S = 30.0
"""A pause that lasts so long waits for a person, and there is none."""
_SPARE_S = 300.0
"""What a run may take beyond its steps: a hang is seen after a minute, and some restart."""
_SLOWEST = 3.0
"""On a machine that cannot keep the pace a run may take so many times as long."""

Say = Callable[[str], None]


@contextlib.contextmanager
def running_stack(home: Path, say: Say) -> Iterator[Stack]:
    """Start a stack in `home` with the policy for runs that nobody watches, and end it."""
    try:
        yield start_stack(home, policy=assets_folder() / "policies" / POLICY, on_progress=say)
    finally:
        stop_stack(home)


def run_wave(
    stack: Stack,
    specs: Sequence[Spec],
    *,
    on_over: Callable[[Outcome], None],
    on_progress: Say,
) -> None:
    """Train all runs at once, and tell of each when it is over.

    Args:
        stack: what watches them.
        specs: the runs; their home is the stack's.
        on_over: told of each outcome.
        on_progress: told in one sentence how far all are.

    Raises:
        StackError: a part of the stack does not answer.
    """
    launchers = {spec.run: Launcher(spec) for spec in specs}
    with contextlib.ExitStack() as leaving:
        client = leaving.enter_context(ControllerClient(stack.controller, stack.operator_token_file))
        for launcher in launchers.values():
            leaving.callback(launcher.kill)
        _Wave(launchers, Witness(stack, client), RestartHook(stack.alertmanager)).play(on_over, on_progress)


class _Wave:
    def __init__(self, launchers: dict[str, Launcher], witness: Witness, hook: RestartHook) -> None:
        self._launchers = launchers
        self._witness = witness
        self._hook = hook
        self._waiting = list(launchers.values())
        self._told: set[str] = set()
        self._paused_since: dict[str, float] = {}
        self._deadlines: dict[str, float] = {}
        self._hook_due = 0.0
        self._start_due = 0.0

    def play(self, on_over: Callable[[Outcome], None], on_progress: Say) -> None:
        while len(self._told) < len(self._launchers):
            now = time.monotonic()
            if self._waiting and now >= self._start_due:
                launcher = self._waiting.pop(0)
                launcher.start()
                self._start_due = now + _BETWEEN_STARTS_S * launcher.spec.recipe.ranks
                longest = _SLOWEST * launcher.spec.steps * launcher.spec.pace + _SPARE_S
                self._deadlines[launcher.spec.run] = now + longest
            if now >= self._hook_due:
                self._hook.look(self._launchers)
                self._hook_due = now + _HOOK_EVERY_S
            for run in self._deadlines.keys() - self._told:
                self._look_at(self._launchers[run], on_over)
            on_progress(self._progress())
            time.sleep(_TICK_S)

    def _look_at(self, launcher: Launcher, on_over: Callable[[Outcome], None]) -> None:
        run = launcher.spec.run
        launcher.look()
        if not launcher.over and time.monotonic() > self._deadlines[run]:
            launcher.give_up("out of time")
        elif not launcher.over and self._is_paused_for_good(run):
            launcher.give_up("paused")
        if launcher.over:
            self._told.add(run)
            on_over(outcome_of(launcher.spec, launcher.diary, self._witness.evidence(run)))

    def _is_paused_for_good(self, run: str) -> bool:
        try:
            paused = self._witness.paused(run)
        except TrainswitchError:  # a status file of another moment is looked at again
            return False
        if not paused:
            self._paused_since.pop(run, None)
            return False
        return time.monotonic() > self._paused_since.setdefault(run, time.monotonic()) + _PAUSED_S

    def _progress(self) -> str:
        steps = [
            min(1.0, launcher.diary.executed / launcher.spec.steps)
            for launcher in self._launchers.values()
            if launcher.spec.run not in self._told
        ]
        slowest = f", the slowest at {min(steps):.0%}" if steps else ""
        return f"{len(self._told)} of {len(self._launchers)} runs are over{slowest}"
