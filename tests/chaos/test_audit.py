"""The judge of scripts/chaos finds each fault it is there for: a meter that cannot deflect is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.chaos.audit import Findings, audit
from benchmarks.chaos.evidence import Evidence
from benchmarks.chaos.journal import JournaledCommand
from benchmarks.chaos.plan import Fault, Plan
from benchmarks.chaos.sender import Attempt, Episode, Message
from benchmarks.chaos.witness import Seen, Sight

STARTS_AT = 1_700_000_000.0


def life(number: int, rates: list[float], *, first: int = 1, restored: float = -1.0) -> Iterator[Sight]:
    """One incarnation that moved by `rates`, at the steps from `first` on."""
    pid = 1000 + number
    yield Sight(Seen.BEGAN, number, first - 1, restored, pid)
    for step, rate in enumerate(rates, start=first):
        yield Sight(Seen.MOVED, number, step, rate, pid)


def command(**changes: Any) -> JournaledCommand:
    """A reduction to a half that was answered at step 2."""
    values: dict[str, Any] = {
        "id": "c1",
        "action": "reduce_lr",
        "params": {"factor": 0.5},
        "cause": "ladder",
        "state": "applied",
        "detail": "learning rate multiplied by 0.5: now 0.5.",
        "rung": 1,
        "alertname": "ChaosLoss",
        "starts_at": STARTS_AT,
        "seq": 1,
        "step": 2,
    }
    return JournaledCommand(**{**values, **changes})


def evidence(**changes: Any) -> Evidence:
    """A round in which one alert was delivered, and one reduction was carried out."""
    episode = Episode("ChaosLoss", "r", STARTS_AT, fired_at=1.0)
    plan = Plan(0, whole_stack=False, restores=False, episodes=(), faults=(), replays=())
    values: dict[str, Any] = {
        "plan": plan,
        "run": "r",
        "commands": [command()],
        "outcomes": {"ChaosLoss": ["acted"]},
        "sights": list(life(1, [1.0, 1.0, 0.5, 0.5])),
        "answered_by": {"c1": 1001},
        "episodes": [episode],
        "attempts": [Attempt("m1", Message(episode, "firing"), 200)],
        "marks": {"m1"},
        "orders": [],
        "unanswered": [],
        "checkpoints": set(),
        "clock_step": 0.0,
        "deaths": [],
        "calm": True,
        "seconds": 1.0,
    }
    return Evidence(**{**values, **changes})


def found(**changes: Any) -> Findings:
    """What is found where the round was as `changes` say."""
    return audit(evidence(**changes))


def test_a_round_in_which_all_went_well_is_clean() -> None:
    """One alert, one command, one effect: nothing is found, and the intervention counts."""
    findings = found()
    assert findings.clean
    assert findings.applied == 1


class TestLost:
    """What was acknowledged and is gone."""

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"marks": set()}, "delivery m1 was answered with 200 and is not journaled"),
            ({"commands": []}, "ChaosLoss was acknowledged and never acted"),
            ({"orders": ["c9"]}, "order c9 was answered with 202 and is not journaled"),
            ({"unanswered": ["ChaosNorm"]}, "ChaosNorm lasted and was not answered"),
            ({"commands": [command(state="written", step=None)]}, "is written for ever"),
            ({"commands": [command(state="expired")]}, "ended expired"),
            ({"commands": [command(state="superseded")]}, "ended superseded"),
            ({"commands": [command(state="failed", detail="no optimizer")]}, "ended failed: no optimizer"),
        ],
    )
    def test_it_is_found(self, changes: dict[str, Any], sentence: str) -> None:
        """Each way to lose something is named."""
        [lost] = found(**changes).lost
        assert sentence in lost

    def test_who_ended_before_it_was_heard_of_need_not_act(self) -> None:
        """Only firing alerts act, and the resolved message may have overtaken the firing one."""
        ended = Episode("ChaosLoss", "r", STARTS_AT, fired_at=2.0, resolving_since=1.0)
        assert found(commands=[], episodes=[ended]).clean

    def test_a_clock_that_steps_further_than_the_time_to_live_explains_an_end(self) -> None:
        """It is counted apart; a smaller step explains nothing."""
        expired = [command(state="expired")]
        assert sum(found(commands=expired, clock_step=3600.0).notes.values()) == 2  # that, and the webhook
        assert found(commands=expired, clock_step=90.0).lost


class TestDoubled:
    """What was carried out more often than it was commanded."""

    def test_a_factor_that_is_in_the_rate_twice(self) -> None:
        """A quarter where a half was commanded is found, whoever says what."""
        [sentence] = found(sights=list(life(1, [1.0, 1.0, 0.5, 0.25]))).doubled
        assert "the factor 1/2 is in it 2 times" in sentence

    def test_a_factor_that_a_checkpoint_brought_along_and_the_trainer_added_again(self) -> None:
        """Across a kill, too."""
        sights = [*life(1, [1.0, 1.0, 0.5]), *life(2, [0.5, 0.25], first=3, restored=2.0)]
        assert found(sights=sights, answered_by={"c1": 1002}).doubled

    def test_a_rate_that_nobody_commanded(self) -> None:
        """Neither a factor of the policy nor a product of some."""
        assert found(sights=list(life(1, [1.0, 1.0, 0.5, 0.45]))).doubled

    def test_one_episode_with_two_commands_for_a_rung(self) -> None:
        """Whatever became of them."""
        twice = [command(), command(id="c2", seq=2, state="failed")]
        assert any("2 commands for rung 1" in sentence for sentence in found(commands=twice).doubled)

    def test_what_was_answered_is_not_done_again_by_the_next_trainer(self) -> None:
        """Although each of the two trainers did it once."""
        sights = [*life(1, [1.0, 1.0, 0.5]), *life(2, [1.0, 1.0, 0.5])]
        [sentence] = found(sights=sights).doubled
        assert "answered by trainer 1, and carried out by [1, 2]" in sentence
        assert found(sights=sights, answered_by={"c1": 1002}).clean  # unanswered, the first time died

    def test_a_folder_that_was_away_took_the_answer_with_it(self) -> None:
        """Nobody knows of it then; counted apart."""
        sights = [*life(1, [1.0, 1.0, 0.5]), *life(2, [1.0, 1.0, 0.5])]
        away = (Fault("away", None, "begin", 0.0, 0.5),)
        plan = dataclasses.replace(evidence().plan, faults=away)
        findings = found(sights=sights, plan=plan)
        assert findings.clean
        assert findings.notes["carried out again because the folder with its answer was gone"] == 1

    def test_a_second_rollback_and_a_second_snapshot(self) -> None:
        """In one trainer, after one command."""
        for seen, action, detail in (
            (Seen.LOADED, "rollback", "rolled back from step 2 to the stable checkpoint of step 1."),
            (Seen.CAPTURED, "snapshot", "saved step 2."),
        ):
            did = Sight(seen, 1, 2, 0.0, 1001)
            steps = list(life(1, [1.0, 1.0, 1.0, 1.0]))
            once = [*steps[:3], did, *steps[3:]]
            twice = [*once[:-1], did, once[-1]]
            done = [command(action=action, params={}, detail=detail)]
            assert found(commands=done, sights=once, checkpoints={2}).clean
            assert found(commands=done, sights=twice, checkpoints={2}).doubled


class TestUnapplied:
    """What was answered and not done."""

    def test_a_rate_that_stays(self) -> None:
        """The answer says a half, the weight moves as before."""
        assert found(sights=list(life(1, [1.0, 1.0, 1.0]))).unapplied

    def test_a_trainer_that_was_killed_before_its_next_step_shows_nothing(self) -> None:
        """What it did died with it: counted apart."""
        findings = found(sights=[*life(1, [1.0, 1.0]), *life(2, [1.0, 1.0, 1.0])])
        assert findings.clean
        assert findings.applied == 0
        assert findings.notes["answered by a trainer that was killed before its next step"] == 1

    def test_a_snapshot_without_a_checkpoint_on_the_disk(self) -> None:
        """Copying the state is not enough."""
        steps = list(life(1, [1.0, 1.0, 1.0]))
        sights = [*steps[:3], Sight(Seen.CAPTURED, 1, 2, 0.0, 1001), *steps[3:]]
        saved = [command(action="snapshot", params={}, detail="saved step 2.")]
        assert found(commands=saved, sights=sights, checkpoints=set()).unapplied

    def test_a_rollback_that_loaded_nothing(self) -> None:
        """The trainer's state was not replaced."""
        back = command(
            action="rollback", params={}, detail="rolled back from step 2 to the stable checkpoint of"
        )
        assert found(commands=[back], sights=list(life(1, [1.0] * 4))).unapplied

    @pytest.mark.parametrize(("resumed_at", "stood"), [(2, True), (5, False)])
    def test_a_pause_that_let_the_trainer_step_on(self, resumed_at: int, stood: bool) -> None:
        """Between a pause and its end there is no step."""
        commands = [
            command(action="pause", params={}, detail="paused at step 2."),
            command(id="c2", action="resume", params={}, rung=None, seq=2, step=resumed_at, detail="resumed"),
        ]
        assert found(commands=commands, sights=list(life(1, [1.0] * 9))).clean is stood


class TestBroken:
    """What must not happen either."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"deaths": ["controller ended by itself with 1: see its log."]},
            {"calm": False},
            {"attempts": [Attempt("m1", Message(Episode("ChaosLoss", "r", STARTS_AT), "firing"), 500)]},
        ],
    )
    def test_it_is_found(self, changes: dict[str, Any]) -> None:
        """A process that dies by itself, a round without an end, an answer that means nothing."""
        assert len(found(**changes).broken) == 1
