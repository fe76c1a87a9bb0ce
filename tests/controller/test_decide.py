"""`decide` is a pure function: every rule of the policy as a table of facts and outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from trainswitch_controller.decide import Decision, decide
from trainswitch_controller.facts import History, Taken, Trouble
from trainswitch_controller.policy import Policy

NOW = 1_700_000_000.0


def policy(**changes: Any) -> Policy:
    """Return a policy with two alerts and the defaults."""
    values: dict[str, Any] = {
        "version": 1,
        "alerts": {
            "Unstable": {
                "ladder": [{"action": "reduce_lr"}, {"action": "rollback", "params": {"lr_factor": 0.5}}]
            },
            "Quick": {"cooldown": "0s", "ladder": [{"action": "snapshot"}]},
        },
    }
    return Policy.model_validate({**values, **changes})


def judge(
    history: History | None = None, name: str = "Unstable", *, rules: Policy | None = None, **of: Any
) -> Decision:
    """Decide about one firing alert that began a second ago."""
    trouble = Trouble(**{"alertname": name, "run": "demo", "starts_at": NOW - 1.0, **of})
    return decide(rules or policy(), history or History(), trouble, NOW)


def taken(rung: int, ago: float = 1000.0, carried_out_ago: float | None = 990.0) -> History:
    """The history of a run whose trouble has been answered with `rung`, so many seconds ago."""
    carried_out = None if carried_out_ago is None else NOW - carried_out_ago
    at = NOW - ago
    return History(
        last_taken=Taken(rung, at, carried_out),
        last_trouble_at=at,
        last_intervention_at=at,
        run_interventions=(at,),
        all_interventions=(at,),
    )


def test_the_first_episode_takes_the_first_rung() -> None:
    """Trouble without history begins at rung 1 with the parameters spelled out."""
    decision = judge()
    assert (decision.outcome, decision.rung, decision.action, decision.params) == (
        "acted",
        1,
        "reduce_lr",
        {"factor": 0.5},
    )


def test_returning_trouble_climbs_the_ladder_and_ends_in_a_pause() -> None:
    """Rung k + 1 follows rung k; after the last rung comes a pause, and again a pause."""
    climbed = [judge(taken(rung)) for rung in (1, 2, 3)]
    assert [(one.rung, one.action) for one in climbed] == [(2, "rollback"), (3, "pause"), (3, "pause")]
    assert climbed[0].params == {"lr_factor": 0.5}


def test_quiet_time_resets_the_ladder() -> None:
    """After ladder_reset without the trouble rung 1 comes again; an episode heard since keeps the place."""
    long_ago = taken(2, ago=86_401.0, carried_out_ago=86_400.0)
    assert judge(long_ago).rung == 1
    heard_since = History(
        last_taken=long_ago.last_taken, last_trouble_at=NOW - 100.0, last_intervention_at=NOW - 86_401.0
    )
    assert judge(heard_since).rung == 3


def test_only_firing_alerts_act() -> None:
    """A resolved alert never acts, and neither does the late firing of an episode that has resolved."""
    assert judge(firing=False).outcome == "resolved"
    late = judge(History(episode_resolved=True))
    assert (late.outcome, late.action) == ("resolved", None)


def test_an_episode_is_decided_once() -> None:
    """A resend of a decided episode is a duplicate, however much time has passed."""
    assert judge(History(episode_settled=True), starts_at=NOW - 1e6).outcome == "duplicate"


@pytest.mark.parametrize(("age", "outcome"), [(3600.0, "acted"), (3600.1, "stale"), (-5.0, "acted")])
def test_old_news_is_stale(age: float, outcome: str) -> None:
    """An alert that began more than max_alert_age ago does not act; a clock that is ahead does no harm."""
    assert judge(starts_at=NOW - age).outcome == outcome


def test_alerts_without_policy_do_not_act() -> None:
    """An alert that the policy does not name is journaled as that."""
    assert judge(name="Unheard").outcome == "no_policy"


@pytest.mark.parametrize("run", [None, "", "..", "a/b", "a b"])
def test_alerts_without_a_valid_run_do_not_act(run: str | None) -> None:
    """A run that could not be a folder is refused before anything else."""
    assert judge(run=run).outcome == "invalid_run"
    assert judge(run=run, name="Unheard", firing=False).outcome == "invalid_run"


def test_the_watchdog_never_acts() -> None:
    """The Watchdog needs no run and is never judged further."""
    assert judge(name="Watchdog", run=None).outcome == "watchdog"


def test_a_cooldown_defers() -> None:
    """Within the cooldown nothing acts, and the time to decide again is its end."""
    decision = judge(taken(1, ago=20.0, carried_out_ago=19.0))
    assert (decision.outcome, decision.retry_at, decision.action) == ("cooldown", NOW + 40.0, None)


def test_a_first_pause_waits_for_no_cooldown_but_a_second_one_does() -> None:
    """Other trouble than the one just answered is paused for at once; the same trouble waits, as rungs do."""
    rules = policy(alerts={"Halt": {"ladder": [{"action": "pause_and_snapshot"}]}})
    other = History(last_intervention_at=NOW - 1.0, run_interventions=(NOW - 1.0,))
    assert judge(other, "Halt", rules=rules).action == "pause_and_snapshot"
    assert judge(taken(1, ago=20.0, carried_out_ago=19.0), "Halt", rules=rules).outcome == "cooldown"


def test_a_cooldown_is_the_runs_not_the_alerts() -> None:
    """An intervention for another alert defers too, unless this alert's own cooldown is shorter."""
    elsewhere = History(last_intervention_at=NOW - 20.0)
    assert judge(elsewhere).outcome == "cooldown"
    assert judge(elsewhere, "Quick").outcome == "acted"


@pytest.mark.parametrize("carried_out_ago", [None, 0.5])
def test_one_rung_is_for_all_alerts_of_one_fault(carried_out_ago: float | None) -> None:
    """An episode that began before the rung for the same trouble was carried out does not climb."""
    history = taken(1, ago=2.0, carried_out_ago=carried_out_ago)
    decision = judge(history, "Quick")
    assert (decision.outcome, decision.action) == ("duplicate", None)


def test_one_request_for_approval_is_for_all_alerts_of_one_fault() -> None:
    """While a command for the same trouble awaits approval, a second one would only be approved twice."""
    decision = judge(History(awaiting="abc"))
    assert (decision.outcome, decision.action, decision.existing_command) == (
        "awaiting_approval",
        None,
        "abc",
    )


@pytest.mark.parametrize(
    ("mode", "outcome"), [("enforce", "acted"), ("approve", "awaiting_approval"), ("observe", "observed")]
)
def test_the_mode_decides_what_a_rung_means(mode: str, outcome: str) -> None:
    """The same rung is commanded, proposed or only noted; an alert's own mode comes first."""
    decision = judge(rules=policy(mode=mode))
    assert (decision.outcome, decision.rung, decision.action) == (outcome, 1, "reduce_lr")
    own = policy(alerts={"Unstable": {"mode": mode, "ladder": [{"action": "pause"}]}})
    assert judge(rules=own).outcome == outcome


def spent_history(times: int, *, everywhere: bool = False, pauses: tuple[float, ...] = ()) -> History:
    """Return the history of a run with so many interventions, or of a run beside such runs."""
    used = tuple(NOW - 1000.0 - number for number in range(times))
    return History(
        run_interventions=() if everywhere else used,
        all_interventions=used,
        last_intervention_at=NOW - 1000.0,
        budget_pauses=pauses,
    )


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_end_of_a_budget_is_a_pause(everywhere: bool) -> None:
    """The intervention after the last one of the budget is a pause, once in the window, and then none."""
    used = 20 if everywhere else 5
    assert judge(spent_history(used - 1, everywhere=everywhere)).outcome == "acted"
    ended = judge(spent_history(used, everywhere=everywhere))
    assert (ended.outcome, ended.action, ended.cause) == ("budget", "pause", "budget")
    again = judge(spent_history(used, everywhere=everywhere, pauses=(NOW - 500.0,)))
    assert (again.outcome, again.action) == ("budget", None)


def test_a_budget_window_slides() -> None:
    """Interventions from before the window cost nothing, and an old pause does not stand for a new one."""
    rules = policy(budget={"per_run": {"interventions": 2, "window": "15m"}})
    assert judge(spent_history(2), rules=rules).outcome == "acted"
    recent = History(run_interventions=(NOW - 100.0, NOW - 90.0), budget_pauses=(NOW - 1000.0,))
    assert judge(recent, rules=rules).action == "pause"


def test_the_end_of_a_budget_respects_the_mode() -> None:
    """Who wants to approve, or only to observe, is not paused behind the back."""
    for mode, outcome in (("approve", "awaiting_approval"), ("observe", "observed")):
        decision = judge(spent_history(5), rules=policy(mode=mode))
        assert (decision.outcome, decision.action, decision.cause) == (outcome, "pause", "budget")
    snapshot = policy(budget={"when_exhausted": "pause_and_snapshot"})
    assert judge(spent_history(5), rules=snapshot).action == "pause_and_snapshot"
