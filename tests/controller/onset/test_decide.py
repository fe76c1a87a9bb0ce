"""What a known onset means for a rollback, as `decide` has it."""

from __future__ import annotations

from typing import Any

from trainswitch_controller.decide import Decision, decide
from trainswitch_controller.facts import History, Loaded, Trouble
from trainswitch_controller.policy import Policy

NOW = 1_700_000_000.0


def judge(params: dict[str, Any] | None = None, **facts: Any) -> Decision:
    """Decide about an alert whose ladder is two rollbacks with these parameters."""
    ladder = [{"action": "rollback", "params": params or {}}] * 2
    policy = Policy.model_validate({"version": 1, "cooldown": "0s", "alerts": {"Bad": {"ladder": ladder}}})
    return decide(policy, History(**facts), Trouble("Bad", "demo", NOW - 1.0), NOW)


def loaded(step: int) -> Loaded:
    """A rollback to `step` that was carried out a minute ago."""
    return Loaded(NOW - 60.0, step)


def test_the_first_rollback_goes_to_before_the_onset() -> None:
    """A rung that names no step gets that of the onset, and says so; step 0 is a step."""
    assert judge(onset_step=940).params["before_step"] == 940
    assert "began after step 940" in judge(onset_step=940).reason
    assert judge(onset_step=0).params == {"before_step": 0, "or_oldest": True}
    assert "before_step" not in judge().params


def test_a_rung_that_names_a_step_keeps_it() -> None:
    """The policy's own words come first."""
    assert judge({"step": 10}, onset_step=940).params["step"] == 10
    assert "before_step" not in judge({"step": 10}, onset_step=940).params
    assert judge({"before_step": 2000}, onset_step=940).params["before_step"] == 2000


def test_after_a_relapse_the_earlier_of_both_steps_holds() -> None:
    """Further back than what was loaded, and further still where the onset is earlier."""
    assert judge(last_rollback=loaded(900), onset_step=940).params == {"before_step": 899}
    assert judge(last_rollback=loaded(900), onset_step=800).params == {"before_step": 800, "or_oldest": True}
    assert judge(last_rollback=loaded(900)).params["before_step"] == 899
    assert judge({"before_step": 50}, last_rollback=loaded(900), onset_step=20).params["before_step"] == 50


def test_an_onset_does_not_break_the_breaker() -> None:
    """After two rollbacks in vain a pause follows, whatever the onset."""
    decision = judge(last_rollback=loaded(900), rollbacks_in_a_row=2, onset_step=10)
    assert decision.action == "pause"
