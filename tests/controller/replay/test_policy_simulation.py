"""What a policy does in replayed time: ladders, cooldowns, budgets and modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainswitch_controller.policy import Policy, load_policy
from trainswitch_controller.replay.model import (
    Episode,
    Intervention,
    RecordedRun,
    ReplayedRun,
    ReplayResult,
    Row,
)
from trainswitch_controller.replay.policy_simulation import document, simulate

POLICIES = Path(__file__).parents[3] / "policies"


def policy(ladder: list[dict[str, Any]], **settings: Any) -> Policy:
    """Return a policy with one ladder, for ``TrainLossUnstable``."""
    return Policy.model_validate(
        {"version": 1, "alerts": {"TrainLossUnstable": {"ladder": ladder}}, **settings}
    )


def episode(start: float, end: float, run: str = "a", **said: Any) -> Episode:
    """Return a critical episode at a pace of 2 s a row."""
    fields: dict[str, Any] = {
        "alert": "TrainLossUnstable",
        "severity": "critical",
        "action": "reduce_lr",
        "start_row": int(start // 2),
        "end_row": int(end // 2),
        **said,
    }
    return Episode(run=run, start=start, end=end, **fields)


def played(rules: Policy, *episodes: Episode, rows: int = 1000) -> tuple[Intervention, ...]:
    """Return what `rules` did about the episodes of one run."""
    run = RecordedRun("a", Path("a.csv"), (Row(),) * rows)
    result = ReplayResult(runs=(ReplayedRun(run=run, episodes=episodes),), pace=2.0)
    return simulate(result, rules).runs[0].interventions


def said(interventions: tuple[Intervention, ...]) -> list[tuple[float, str, str | None]]:
    """Return when, what became of it, and what was commanded."""
    return [(one.at, one.outcome, one.action) for one in interventions]


REDUCE = {"action": "reduce_lr", "params": {"factor": 0.25}}
PAUSE = {"action": "pause"}


def test_an_episode_takes_the_first_rung_where_it_begins() -> None:
    """The intervention stands at the row and second of the episode's start, with parameters and reason."""
    (one,) = played(policy([REDUCE, PAUSE]), episode(100.0, 110.0))
    assert (one.run, one.alert, one.row, one.at) == ("a", "TrainLossUnstable", 50, 100.0)
    assert (one.outcome, one.action, one.params) == ("acted", "reduce_lr", {"factor": 0.25})
    assert one.reason == "rung 1 of 2."


def test_trouble_that_returns_goes_up_the_ladder_and_beyond_it_pauses() -> None:
    """Each new episode takes the next rung."""
    found = played(
        policy([REDUCE, {"action": "rollback"}]), *(episode(at, at + 10.0) for at in (100.0, 300.0, 500.0))
    )
    assert said(found) == [
        (100.0, "acted", "reduce_lr"),
        (300.0, "acted", "rollback"),
        (500.0, "acted", "pause"),
    ]


def test_an_episode_within_the_cooldown_waits_and_acts_if_it_still_fires() -> None:
    """It is decided again at the cooldown's end; one that ends before does nothing."""
    rules = policy([REDUCE, {"action": "rollback"}], cooldown="60s")
    lasting = played(rules, episode(100.0, 104.0), episode(130.0, 300.0))
    assert said(lasting) == [
        (100.0, "acted", "reduce_lr"),
        (130.0, "cooldown", None),
        (160.0, "acted", "rollback"),
    ]
    assert said(played(rules, episode(100.0, 104.0), episode(130.0, 140.0)))[1:] == [
        (130.0, "cooldown", None)
    ]


def test_the_end_of_the_budget_is_a_pause_and_then_silence() -> None:
    """As in production: once paused for it, the run is left to people."""
    rules = policy(
        [REDUCE, REDUCE, REDUCE, REDUCE], budget={"per_run": {"interventions": 2, "window": "24h"}}
    )
    found = played(rules, *(episode(at, at + 10.0) for at in (100.0, 300.0, 500.0, 700.0)))
    assert said(found) == [
        (100.0, "acted", "reduce_lr"),
        (300.0, "acted", "reduce_lr"),
        (500.0, "budget", "pause"),
        (700.0, "budget", None),
    ]


def test_runs_do_not_share_a_budget() -> None:
    """The runs of a replay did not happen at the same time: the budget of all runs is each one's own."""
    rules = policy([REDUCE], budget={"global": {"interventions": 1, "window": "1h"}})
    runs = tuple(
        ReplayedRun(run=RecordedRun(name, Path(name), (Row(),) * 99), episodes=(episode(9.0, 10.0, name),))
        for name in ("a", "b")
    )
    result = simulate(ReplayResult(runs=runs, pace=2.0), rules)
    assert [run.interventions[0].outcome for run in result.runs] == ["acted", "acted"]


@pytest.mark.parametrize(("mode", "outcome"), [("observe", "observed"), ("approve", "awaiting_approval")])
def test_other_modes_say_what_they_would_do(mode: str, outcome: str) -> None:
    """The action is named, and nothing is carried out."""
    (first, *_) = played(policy([REDUCE], mode=mode), episode(100.0, 110.0))
    assert (first.outcome, first.action) == (outcome, "reduce_lr")


def test_a_pause_that_ends_with_its_alert_is_resumed() -> None:
    """The resume stands where the alert resolves."""
    found = played(policy([{**PAUSE, "resume_when_resolved": True}]), episode(100.0, 120.0))
    assert said(found) == [(100.0, "acted", "pause"), (120.0, "acted", "resume")]


def test_only_critical_episodes_with_an_action_reach_the_controller() -> None:
    """As Alertmanager's route has it: warnings are for people."""
    assert (
        played(policy([REDUCE]), episode(1.0, 2.0, severity="warning"), episode(3.0, 4.0, action=None)) == ()
    )


def test_an_alert_without_a_ladder_is_told() -> None:
    """Somebody who tries a policy wants to see what it leaves out."""
    (one,) = played(policy([REDUCE]), episode(1.0, 2.0, alert="TrainNonFinite"))
    assert (one.outcome, one.action) == ("no_policy", None)


def test_the_committed_policies_can_be_played() -> None:
    """The default pauses on non-finite values, the autonomous one rolls back."""
    nan = episode(100.0, 130.0, alert="TrainNonFinite", action="pause")
    actions = [played(load_policy(path)[0], nan)[0].action for path in sorted(POLICIES.iterdir())]
    assert actions == ["rollback", "pause"]


def test_the_last_row_holds_what_comes_after_the_end() -> None:
    """An alert that fires after the last row is told there."""
    (one,) = played(policy([REDUCE]), episode(100.0, 101.0), rows=10)
    assert one.row == 9
    assert document(one)["params"] == {"factor": 0.25}
