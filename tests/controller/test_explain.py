"""What the policy would do is asked of the decision itself, and asking changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

MakeLoop = Callable[..., Any]

POLICY = """
version: 1
cooldown: 60s
budget: {per_run: {interventions: 3, window: 1h}}
alerts:
  TrainLossUnstable:
    mode: approve
    escalate_after: "off"
    ladder: [{action: reduce_lr, params: {factor: 0.5}}, {action: rollback}]
  TrainNonFinite:
    ladder: [{action: rollback}, {action: rollback}]
"""


def explained(loop: Any, alert: str, run: str | None = "demo") -> dict[str, Any]:
    """Return the explanation as the API gives it."""
    found: dict[str, Any] = json.loads(json.dumps(loop.controller.explain(alert, run).document()))
    return found


def test_a_run_without_history_begins_at_the_first_rung(home: Any, make_loop: MakeLoop) -> None:
    """Entry, mode, command and budgets are those of the policy."""
    home.write_policy(POLICY)
    loop = make_loop()
    for run in (None, "demo"):
        found = explained(loop, "TrainLossUnstable", run)
        decision = found["decision"]
        assert (found["mode"], decision["outcome"], decision["rung"]) == ("approve", "awaiting_approval", 1)
        assert (decision["action"], decision["params"]) == ("reduce_lr", {"factor": 0.5})
        assert [rung["action"] for rung in found["ladder"]] == ["reduce_lr", "rollback"]
        assert (found["cooldown"], found["cooldown_left"], found["escalate_after"]) == (60.0, 0.0, None)
        assert [(one["scope"], one["left"]) for one in found["budgets"]] == [("run", 3), ("global", 20)]
        assert found["firing"] == []


def test_history_says_which_rung_is_next_and_what_is_left(home: Any, make_loop: MakeLoop) -> None:
    """After a rung: the cooldown that is left, one intervention less, and then the further rollback."""
    home.write_policy(POLICY)
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("TrainNonFinite")
    loop.tick()
    trainer.poll()
    loop.tick(20.0)
    found = explained(loop, "TrainNonFinite")
    assert (found["decision"]["outcome"], found["cooldown_left"]) == ("cooldown", 40.0)
    then = found["then"]
    assert (then["outcome"], then["rung"], then["params"]) == ("acted", 2, {"before_step": 99})
    assert (found["last_taken"]["rung"], found["last_taken"]["action"]) == (1, "rollback")
    [firing] = found["firing"]
    assert (firing["decision"]["outcome"], "next one is due" in firing["decision"]["reason"]) == (
        "duplicate",
        True,
    )
    assert found["budgets"][0]["left"] == 2
    loop.clock.time += 41.0
    after = explained(loop, "TrainNonFinite")
    assert after["then"] is None
    decision = after["decision"]
    assert decision == then


def test_asking_changes_nothing(home: Any, make_loop: MakeLoop) -> None:
    """An explanation leaves no episode, decision or command behind."""
    home.write_policy(POLICY)
    home.trainer()
    loop = make_loop()
    for _ in range(3):
        explained(loop, "TrainNonFinite")
    assert loop.commands() == []
    assert loop.fire("TrainNonFinite") == "acted"


def test_an_alert_without_entry_is_said_to_cause_nothing(home: Any, make_loop: MakeLoop) -> None:
    """No entry, no mode, no ladder."""
    home.write_policy(POLICY)
    found = explained(make_loop(), "Unheard")
    assert (found["decision"]["outcome"], found["mode"], found["ladder"]) == ("no_policy", None, [])


@pytest.mark.parametrize("run", ["demo", None])
def test_the_api_answers_and_wants_a_token(run: str | None, home: Any, make_server: Any) -> None:
    """The address is an operator's, and its answer the same explanation."""
    home.write_policy(POLICY)
    server = make_server()
    query = {"run": run} if run else {}
    answer = server.ask("GET", "/api/v1/policy/TrainNonFinite", params=query)
    assert answer.status_code == 200
    assert answer.json()["explanation"]["decision"]["action"] == "rollback"
    assert server.client.get("/api/v1/policy/TrainNonFinite").status_code == 401
    assert server.ask("GET", "/api/v1/policy/TrainNonFinite", params={"run": "../x"}).status_code == 422
