"""What the controller did about each alert is a metric, whatever order it comes to know it in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trainswitch_controller.alerts import Webhook
from trainswitch_controller.intake import Judged
from trainswitch_controller.responses import KEPT_S, NAME, Responses
from trainswitch_controller.service import Controller

MakeController = Callable[..., Controller]
Shown = dict[tuple[str, str], tuple[str, str, str, float]]


def shown(responses: Responses) -> Shown:
    """Return (run, alert) → outcome, action, state and time, as they are exported."""
    family, _ = responses.collect()
    assert family.name == NAME
    found: Shown = {}
    for sample in family.samples:
        labels = sample.labels
        key = (labels["run"], labels["alertname"])
        assert key not in found
        found[key] = (labels["outcome"], labels["action"], labels["state"], sample.value)
    return found


def fire(controller: Controller, tools: Any, clock: Any, name: str = "TrainNonFinite", **of: Any) -> None:
    """Deliver one alert that begins now."""
    body = tools.webhook(tools.alert(name, starts_at=clock.time, **of))
    controller.deliver(Webhook.model_validate_json(json.dumps(body)))


def test_a_response_follows_its_command(
    home: Any, make_controller: MakeController, tools: Any, clock: Any
) -> None:
    """An alert's response is the command that answers it, in the state that it has reached, since then."""
    trainer = home.trainer()
    controller = make_controller()
    fire(controller, tools, clock)
    started = clock.time
    responses = controller.metrics.responses
    assert shown(responses) == {("demo", "TrainNonFinite"): ("acted", "pause", "pending", started)}
    clock.time += 1.0
    controller._dispatcher.tick()
    assert shown(responses)["demo", "TrainNonFinite"] == ("acted", "pause", "written", started + 1.0)
    trainer.poll()
    clock.time += 5.0
    controller._dispatcher.tick()
    assert shown(responses)["demo", "TrainNonFinite"][:3] == ("acted", "pause", "applied")


def test_who_follows_forgets_too(home: Any, make_controller: MakeController, tools: Any, clock: Any) -> None:
    """A controller that takes in alerts for another one that leads does not remember them for ever."""
    home.trainer()
    controller = make_controller()
    responses = controller.metrics.responses
    controller.metrics.lead(leads=False)
    fire(controller, tools, clock)
    assert (shown(responses), len(responses._decided), len(responses._entered)) == ({}, 1, 1)
    clock.time += KEPT_S + 1.0
    assert (shown(responses), responses._decided, responses._entered) == ({}, {}, {})


@pytest.mark.parametrize("mode", ["observe", "approve"])
def test_what_was_not_commanded_is_said_too(
    home: Any, make_controller: MakeController, tools: Any, clock: Any, mode: str
) -> None:
    """A policy that only observes, or asks first, answers with what it would do."""
    home.write_policy(
        (home.folder / "policy.yml").read_text().replace("version: 1", f"version: 1\nmode: {mode}")
    )
    controller = make_controller()
    fire(controller, tools, clock)
    expected = {
        "observe": ("observed", "pause", "", clock.time),
        "approve": ("awaiting_approval", "pause", "awaiting_approval", clock.time),
    }
    assert shown(controller.metrics.responses)["demo", "TrainNonFinite"] == expected[mode]


def test_a_repetition_or_the_end_of_an_alert_changes_no_response(
    home: Any, make_controller: MakeController, tools: Any, clock: Any
) -> None:
    """Alertmanager's resends, and resolved alerts, leave what was done about it standing."""
    home.trainer()
    controller = make_controller()
    fire(controller, tools, clock)
    before = shown(controller.metrics.responses)
    fire(controller, tools, clock)
    fire(controller, tools, clock, status="resolved")
    assert shown(controller.metrics.responses) == before


def test_alerts_without_a_policy_make_no_series(
    home: Any, make_controller: MakeController, tools: Any, clock: Any
) -> None:
    """Names that the policy does not know cannot fill Prometheus."""
    home.trainer()
    controller = make_controller()
    fire(controller, tools, clock, "Unheard")
    fire(controller, tools, clock, run="no run")
    assert shown(controller.metrics.responses) == {}


def test_the_state_may_be_known_before_the_decision() -> None:
    """The dispatcher's thread may be faster than the webhook's; the newest state is shown all the same."""
    from trainswitch_controller.records import CommandRecord

    responses = Responses({"TrainNonFinite"}, lambda: 100.0)
    command = CommandRecord(
        id="1",
        run="a",
        alertname="TrainNonFinite",
        action="pause",
        created_at=90.0,
        issued_at=90.0,
        written_at=91.0,
    )
    responses.entered([(command, "pending"), (command, "written")])
    judged = Judged("TrainNonFinite", "a", "acted", "", action="pause", command_id="1", new_episode_age=0.0)
    responses.decided([judged], 90.0)
    assert shown(responses) == {("a", "TrainNonFinite"): ("acted", "pause", "written", 91.0)}


def test_responses_survive_a_restart(
    home: Any, make_controller: MakeController, tools: Any, clock: Any
) -> None:
    """A controller that starts takes the newest response to each alert from the journal."""
    trainer = home.trainer()
    controller = make_controller()
    fire(controller, tools, clock, "TrainLossUnstable")
    controller._dispatcher.tick()
    trainer.poll()
    clock.time += 5.0
    controller._dispatcher.tick()
    fire(controller, tools, clock)
    controller._dispatcher.tick()
    before = shown(controller.metrics.responses)
    assert before.keys() == {("demo", "TrainLossUnstable"), ("demo", "TrainNonFinite")}
    again = make_controller()
    again.journal.read(again._restore_metrics)
    assert shown(again.metrics.responses) == before


def test_a_response_is_forgotten_after_a_day(
    home: Any, make_controller: MakeController, tools: Any, clock: Any
) -> None:
    """Runs come and go; what was done about those of last week is in the journal only."""
    home.trainer()
    controller = make_controller()
    fire(controller, tools, clock)
    clock.time += KEPT_S - 1.0
    assert shown(controller.metrics.responses)
    clock.time += 2.0
    assert shown(controller.metrics.responses) == {}
