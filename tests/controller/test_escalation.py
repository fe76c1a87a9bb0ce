"""Lasting trouble climbs its ladder, but no rung is taken twice, and a run that is held is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from trainswitch_controller.decide import Decision, decide
from trainswitch_controller.facts import History, Loaded, Taken, Trouble
from trainswitch_controller.policy import Policy
from trainswitch_controller.service import Order

NOW = 1_700_000_000.0
MakeLoop = Callable[..., Any]

LASTING = """
version: 1
cooldown: 60s
escalate_after: 10m
alerts:
  TrainNonFinite:
    ladder: [{action: pause}, {action: rollback}]
  TrainLossUnstable:
    ladder:
      - {action: reduce_lr, params: {factor: 0.5}}
      - {action: rollback}
"""


def policy(**changes: Any) -> Policy:
    """Return a policy with one alert of three rungs."""
    rule = {"ladder": [{"action": "rollback"}, {"action": "rollback"}, {"action": "rollback"}]}
    return Policy.model_validate({"version": 1, "alerts": {"Unstable": {**rule, **changes}}})


def judge(
    taken: Taken,
    *,
    rules: Policy | None = None,
    began: float | None = None,
    step: int | None = 500,
    **facts: Any,
) -> Decision:
    """Decide about a settled episode that began before `taken` was carried out, or one that begins later."""
    lasting = began is None
    if taken.action == "rollback" and taken.applied and taken.carried_out_at is not None:
        facts = {"last_rollback": Loaded(taken.carried_out_at, step), **facts}
    history = History(last_taken=taken, episode_settled=lasting, last_trouble_at=NOW - 1.0, **facts)
    trouble = Trouble("Unstable", "demo", taken.at - 1.0 if began is None else began)
    return decide(rules or policy(), history, trouble, NOW)


def rolled_back(ago: float, *, rung: int = 1, applied: bool = True) -> Taken:
    """A rollback that was carried out so many seconds ago."""
    return Taken(rung, NOW - ago - 1.0, NOW - ago, action="rollback", applied=applied)


class TestLasting:
    """What an alert leads to that still fires after its rung was carried out."""

    @pytest.mark.parametrize(("ago", "outcome"), [(599.0, "duplicate"), (600.0, "acted"), (700.0, "acted")])
    def test_trouble_that_outlasts_a_rung_takes_the_next(self, ago: float, outcome: str) -> None:
        """escalate_after seconds after rung k was carried out, and not before, rung k + 1 is taken."""
        decision = judge(rolled_back(ago))
        assert decision.outcome == outcome
        assert decision.rung == (2 if outcome == "acted" else None)
        assert decision.retry_at == (None if outcome == "acted" else NOW + 1.0)

    def test_off_leaves_the_next_rung_to_trouble_that_returns(self) -> None:
        """With escalate_after off, nothing but a new episode climbs."""
        off = policy(escalate_after="off")
        assert judge(rolled_back(3000.0), rules=off).outcome == "duplicate"
        assert judge(rolled_back(3000.0), rules=off, began=NOW - 1.0).outcome == "acted"

    def test_the_cooldown_is_waited_for_as_well(self) -> None:
        """An intervention for another alert meanwhile puts the next rung off."""
        decision = judge(rolled_back(700.0), last_intervention_at=NOW - 20.0)
        assert (decision.outcome, decision.retry_at) == ("duplicate", NOW + 40.0)

    @pytest.mark.parametrize("action", ["pause", "pause_and_snapshot", "stop"])
    def test_nothing_outlasts_what_holds_the_run(self, action: str) -> None:
        """The samples of a run that stands still are the old ones: they say nothing about the trouble."""
        held = Taken(1, NOW - 3001.0, NOW - 3000.0, action=action)
        assert judge(held).outcome == "duplicate"

    def test_a_rung_that_was_refused_is_passed_after_the_cooldown(self) -> None:
        """What the trainer did not do cannot have helped; there is no effect to wait for."""
        refused = rolled_back(61.0, applied=False)
        assert judge(refused, last_intervention_at=NOW - 62.0).rung == 2

    @pytest.mark.parametrize("facts", [{"tried": frozenset({2})}, {"awaiting": "abc"}])
    def test_a_rung_that_was_tried_or_proposed_is_not_taken_again(self, facts: dict[str, Any]) -> None:
        """A rung that expired or was rejected, or waits for approval, is not proposed over and over."""
        assert judge(rolled_back(700.0), **facts).outcome == "duplicate"

    def test_a_rung_that_is_long_overdue_is_stale(self) -> None:
        """A controller that comes back after hours does not act for what it knew then."""
        assert judge(rolled_back(600.0 + 3601.0)).outcome == "stale"

    def test_an_old_alert_that_lasts_is_not_stale(self) -> None:
        """The age of the alert counts from the last rung on, not from its beginning hours ago."""
        history = History(last_taken=rolled_back(700.0), episode_settled=True)
        assert decide(policy(), history, Trouble("Unstable", "demo", NOW - 20_000.0), NOW).outcome == "acted"


class TestBreaker:
    """Trouble that comes back right after a rollback has loaded."""

    def test_the_next_rollback_goes_further_back(self) -> None:
        """What returns within relapse_within was in the checkpoint: an earlier one is asked for."""
        decision = judge(rolled_back(200.0), began=NOW - 1.0)
        assert (decision.action, decision.params) == ("rollback", {"before_step": 499})
        assert "further back" in decision.reason

    def test_trouble_that_outlasts_a_rollback_counts_as_well(self) -> None:
        """An alert that never ended after the rollback asks for an earlier checkpoint, too."""
        assert judge(rolled_back(700.0)).params == {"before_step": 499}

    def test_later_trouble_takes_the_newest_checkpoint(self) -> None:
        """What returns after relapse_within is new trouble, and the newest stable checkpoint is good."""
        decision = judge(rolled_back(2000.0), began=NOW - 1.0)
        assert (decision.action, decision.params) == ("rollback", {})

    def test_two_rollbacks_that_did_not_help_end_in_a_pause(self) -> None:
        """After going further back once, the same trouble again is nothing that a checkpoint mends."""
        decision = judge(rolled_back(200.0, rung=2), began=NOW - 1.0, rollbacks_in_a_row=2)
        assert (decision.rung, decision.action, decision.params) == (3, "pause", {})

    @pytest.mark.parametrize("step", [0, None])
    def test_without_an_earlier_step_the_run_is_paused(self, step: int | None) -> None:
        """There is nothing before the first step, and nothing known without a step."""
        assert judge(rolled_back(200.0), began=NOW - 1.0, step=step).action == "pause"

    def test_a_step_that_the_policy_names_stays(self) -> None:
        """Who names a checkpoint gets that one."""
        named = policy(ladder=[{"action": "rollback", "params": {"step": 100}}] * 3)
        assert judge(rolled_back(200.0), rules=named, began=NOW - 1.0).params == {"step": 100}

    @pytest.mark.parametrize(
        ("began", "params"),
        [
            (NOW - 199.0, {"before_step": 499}),
            (NOW - 1.0, {"before_step": 499}),
            (NOW - 201.0, {}),  # from before it: the samples may be as well
        ],
    )
    def test_a_rollback_for_another_alert_counts(self, began: float, params: dict[str, Any]) -> None:
        """Trouble that begins right after any rollback was in the checkpoint, whatever its name."""
        history = History(last_rollback=Loaded(NOW - 200.0, 500))
        decision = decide(policy(), history, Trouble("Unstable", "demo", began), NOW)
        assert (decision.rung, decision.action, decision.params) == (1, "rollback", params)

    def test_long_after_a_rollback_for_another_alert_the_newest_checkpoint_is_taken(self) -> None:
        """What begins after relapse_within says nothing about what was loaded."""
        history = History(last_rollback=Loaded(NOW - 602.0, 500))
        assert decide(policy(), history, Trouble("Unstable", "demo", NOW - 1.0), NOW).params == {}

    def test_trouble_that_outlasts_its_own_rung_and_a_rollback_goes_further_back(self) -> None:
        """An alert that lasts has outlasted a rollback for another one meanwhile, too."""
        lowered = Taken(1, NOW - 701.0, NOW - 700.0, action="reduce_lr")
        decision = judge(lowered, last_rollback=Loaded(NOW - 300.0, 500))
        assert (decision.rung, decision.params) == (2, {"before_step": 499})

    def test_rollbacks_for_several_alerts_end_in_a_pause_as_well(self) -> None:
        """Two rollbacks that did not help are enough, under whatever names the fault shows."""
        history = History(last_rollback=Loaded(NOW - 200.0, 500), rollbacks_in_a_row=2)
        assert decide(policy(), history, Trouble("Unstable", "demo", NOW - 1.0), NOW).action == "pause"


class TestHeld:
    """A run that is paused waits for a person."""

    def test_nothing_acts_on_a_paused_run(self) -> None:
        """Nothing is changed; whether the pause has ended is looked at once a cooldown."""
        history = History(paused=True)
        decision = decide(policy(), history, Trouble("Unstable", "demo", NOW - 1.0), NOW)
        assert (decision.outcome, decision.action, decision.retry_at) == ("held", None, NOW + 60.0)

    def test_who_resumes_a_run_gets_time_before_the_same_alert_acts(self) -> None:
        """An alert from before the resumption waits for a cooldown; a pause for it, too."""
        rules = policy(ladder=[{"action": "pause"}])
        history = History(released_at=NOW - 10.0)
        before = decide(rules, history, Trouble("Unstable", "demo", NOW - 100.0), NOW)
        assert (before.outcome, before.retry_at) == ("cooldown", NOW + 50.0)
        after = decide(rules, history, Trouble("Unstable", "demo", NOW - 5.0), NOW)
        assert after.outcome == "acted"


def test_lasting_trouble_climbs_without_another_webhook(home: Any, make_loop: MakeLoop) -> None:
    """Alertmanager says once that an alert fires; the controller itself takes the next rung in time, once."""
    home.write_policy(LASTING)
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    assert loop.fire("TrainLossUnstable", starts_at=began) == "acted"
    loop.tick()
    trainer.poll()
    loop.tick(10.0)
    loop.tick(580.0)
    assert [action for action, _ in loop.states()] == ["reduce_lr"]
    assert loop.fire("TrainLossUnstable", starts_at=began) == "duplicate"
    loop.tick(20.0)
    assert [action for action, _ in loop.states()] == ["reduce_lr", "rollback"]
    loop.tick(1.0)
    trainer.poll()
    for _ in range(4):
        loop.tick(700.0)
        trainer.poll()
    assert [action for action, _ in loop.states()] == ["reduce_lr", "rollback", "pause"]
    assert len(trainer.carried_out) == 3


def test_an_alert_that_resolved_does_not_climb(home: Any, make_loop: MakeLoop) -> None:
    """Once it has resolved, no rung follows, whenever the next one would have been due."""
    home.write_policy(LASTING)
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    loop.fire("TrainLossUnstable", starts_at=began)
    loop.tick()
    trainer.poll()
    loop.tick(10.0)
    loop.fire("TrainLossUnstable", starts_at=began, status="resolved")
    loop.tick(2000.0)
    assert len(loop.commands()) == 1


@pytest.mark.parametrize(("later", "rank"), [(1200.0, "0"), (7200.0, "1")])
def test_an_end_that_was_never_heard_of_does_not_climb(
    later: float, rank: str, home: Any, make_loop: MakeLoop
) -> None:
    """An episode whose resolution got lost is over once its alert began anew, or was silent for long."""
    home.write_policy(LASTING)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainNonFinite", rank="0")
    loop.tick()
    trainer.poll()
    loop.tick(later)
    again = loop.clock.time
    loop.fire("TrainNonFinite", starts_at=again, rank=rank)
    loop.tick()
    trainer.poll()
    loop.tick(10.0)
    loop.fire("TrainNonFinite", starts_at=again, rank=rank, status="resolved")
    assert [one["result"] for one in loop.commands()[-1]["recovery"]] == ["resolved"]
    for _ in range(3):
        loop.tick(700.0)
        trainer.poll()
    assert [action for action, _ in loop.states()] == ["pause", "rollback"]


def test_all_ranks_that_last_take_one_rung(home: Any, make_loop: MakeLoop) -> None:
    """Four alerts of one trouble that all outlast rung 1 take rung 2 once."""
    home.write_policy(LASTING)
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    for rank in range(4):
        loop.fire("TrainLossUnstable", starts_at=began, rank=str(rank))
    loop.tick()
    trainer.poll()
    loop.tick(10.0)
    loop.tick(700.0)
    loop.tick(1.0)
    assert [action for action, _ in loop.states()] == ["reduce_lr", "rollback"]


def test_a_clock_of_the_trainer_that_is_wrong_hastens_nothing(home: Any, make_loop: MakeLoop) -> None:
    """An answer from before its command counts as of the command, one from the future as of now."""
    home.write_policy(LASTING)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainLossUnstable")
    loop.tick()
    trainer.poll()
    trainer.results[-1] = trainer.results[-1].model_copy(update={"at": loop.clock.time - 7200.0})
    trainer.write()
    loop.tick(10.0)
    loop.tick(580.0)
    assert len(loop.commands()) == 1
    loop.tick(20.0)
    assert len(loop.commands()) == 2


def test_a_paused_run_is_left_alone_until_it_is_resumed(home: Any, make_loop: MakeLoop) -> None:
    """Other trouble of a paused run is held; after the resumption it gets a cooldown to end, then acts."""
    home.write_policy(LASTING)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainNonFinite")
    loop.tick()
    trainer.poll()
    trainer.write(state="paused")
    loop.tick(100.0)
    assert loop.fire("TrainLossUnstable") == "held"
    loop.tick(1000.0)
    assert [action for action, _ in loop.states()] == ["pause"]
    loop.controller.order("demo", Order(action="resume"))
    loop.tick()
    trainer.poll()
    loop.tick(1.0)
    loop.tick(30.0)
    assert [action for action, _ in loop.states()] == ["pause", "resume"]
    loop.tick(40.0)
    assert [action for action, _ in loop.states()] == ["pause", "resume", "reduce_lr"]


def test_a_pause_that_a_restart_ends_holds_nothing_back(home: Any, make_loop: MakeLoop) -> None:
    """A trainer killed while paused trains again without a resume; what was held acts a cooldown later."""
    home.write_policy(LASTING)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainNonFinite")
    loop.tick()
    trainer.poll()
    trainer.write(state="paused")
    loop.tick(100.0)
    assert loop.fire("TrainLossUnstable") == "held"
    for _ in range(5):
        loop.tick(61.0)
    assert [action for action, _ in loop.states()] == ["pause"]
    assert loop.decided("TrainLossUnstable") == ["held"]  # not a line for each look
    home.trainer().write(state="running")
    loop.tick(61.0)
    assert [action for action, _ in loop.states()] == ["pause", "reduce_lr"]


def test_a_relapse_asks_the_trainer_for_an_earlier_checkpoint(home: Any, make_loop: MakeLoop) -> None:
    """Rollback, further back, then a pause: what comes back right after loading is not tried for ever."""
    home.write_policy(
        "version: 1\ncooldown: 0s\nalerts:\n  TrainNonFinite:\n    ladder:\n"
        + "      - {action: rollback}\n" * 4
    )
    trainer = home.trainer()
    loop = make_loop()
    for _ in range(3):
        loop.fire()
        loop.tick()
        trainer.poll()
        loop.tick(30.0)
    asked = [(command["action"], command["params"]) for command in loop.commands()]
    assert asked == [("rollback", {}), ("rollback", {"before_step": 99}), ("pause", {})]


def test_a_relapse_under_other_names_is_one(home: Any, make_loop: MakeLoop) -> None:
    """Three alerts one after the other, each right after a rollback: back, further back, then a pause."""
    names = ("TrainLossUnstable", "TrainGradientExplosion", "TrainNonFinite")
    home.write_policy(
        "version: 1\ncooldown: 0s\nalerts:\n"
        + "".join(f"  {name}: {{ladder: [{{action: rollback}}]}}\n" for name in names)
    )
    trainer = home.trainer()
    loop = make_loop()
    for name in names:
        loop.fire(name)
        loop.tick()
        trainer.poll()
        loop.tick(30.0)
    asked = [(command["action"], command["params"]) for command in loop.commands()]
    assert asked == [("rollback", {}), ("rollback", {"before_step": 99}), ("pause", {})]


@pytest.mark.parametrize("scope", ["per_run", "global"])
def test_the_end_of_a_budget_is_told_whatever_comes_after(scope: str, home: Any, make_loop: MakeLoop) -> None:
    """The metric that pages keeps the time, though a cooldown or a restart follow."""
    home.write_policy(LASTING + f"budget: {{{scope}: {{interventions: 1, window: 1h}}}}\n")
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainLossUnstable")
    loop.tick()
    trainer.poll()
    loop.tick(100.0)
    assert loop.metric("budget_exhausted_timestamp_seconds", run="demo") is None
    ended = loop.clock.time
    assert loop.fire("TrainLossUnstable") == "budget"
    loop.tick(1.0)
    assert loop.fire("TrainLossUnstable") == "cooldown"
    assert loop.metric("budget_exhausted_timestamp_seconds", run="demo") == ended
    again = make_loop()
    again.controller.journal.read(again.controller._restore_metrics)
    assert again.metric("budget_exhausted_timestamp_seconds", run="demo") == ended
    assert [action for action, _ in loop.states()] == ["reduce_lr", "pause"]


def test_who_approves_is_told_of_the_budgets_end_too(home: Any, make_loop: MakeLoop) -> None:
    """In mode approve the pause is only proposed; the page comes all the same, after a restart as well."""
    home.write_policy("mode: approve\n" + LASTING + "budget: {per_run: {interventions: 1, window: 1h}}\n")
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainLossUnstable")
    loop.controller.approve(loop.commands()[0]["id"])
    loop.tick()
    trainer.poll()
    loop.tick(100.0)
    ended = loop.clock.time
    assert loop.fire("TrainLossUnstable") == "awaiting_approval"
    assert loop.metric("budget_exhausted_timestamp_seconds", run="demo") == ended
    again = make_loop()
    again.controller.journal.read(again.controller._restore_metrics)
    assert again.metric("budget_exhausted_timestamp_seconds", run="demo") == ended
