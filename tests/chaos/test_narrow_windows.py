"""The windows that random rounds meet seldom, each opened on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.chaos.audit import Findings, audit
from benchmarks.chaos.made_up import MadeUpTrouble
from benchmarks.chaos.plan import Fault, Plan, PlannedEpisode
from benchmarks.chaos.play import Round
from benchmarks.chaos.processes import nursery
from benchmarks.chaos.world import World, create_world

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One controller for the rounds of this file."""
    with nursery() as context, create_world(tmp_path_factory.mktemp("chaos"), context) as world:
        yield world


def played(world: World, run: str, *faults: Fault, restores: bool = False, second: float = 0.6) -> Findings:
    """Play a round with two reductions, the second one for an alert that begins then, and judge it."""
    begins = {"ChaosLoss": 0.6, "ChaosNorm": second}
    episodes = tuple(PlannedEpisode(name, at, (at,), ()) for name, at in begins.items())
    plan = Plan(0, whole_stack=False, restores=restores, episodes=episodes, faults=faults, replays=())
    result = Round(world, plan, run, {}).play(MadeUpTrouble(world, plan, run))
    assert len(result.faults) == len(faults)  # each has happened
    return audit(result.evidence)


def test_an_answer_that_a_full_folder_did_not_take(world: World) -> None:
    """Carried out, saved with a checkpoint, killed unanswered and restored: the effect is there once."""
    if not world.disk.mounted:
        pytest.skip("a folder can be filled only where a small file system can be mounted")
    full = Fault("full", None, "commands", 0.0, 1.2)
    killed = Fault("kill", "trainer", "folder", 0.7, 0.1)
    assert played(world, "full", full, killed, restores=True).clean


def test_commands_that_nobody_took_back(world: World) -> None:
    """The controller dies when it has written, the trainer when it has answered: the next one is idle."""
    controller = Fault("kill", "controller", "commands", 0.01, 1.5)
    trainer = Fault("kill", "trainer", "commands", 0.4, 0.0)
    assert played(world, "left", controller, trainer).clean


def test_a_clock_that_was_an_hour_ahead_for_a_second(world: World) -> None:
    """What was commanded meanwhile holds back nothing that comes later."""
    ahead = Fault("clock", "controller", "begin", 0.0, 1.0, 3600.0)
    findings = played(world, "ahead", ahead, second=1.4)
    assert findings.clean
    assert findings.applied == 2
