"""What the controller did is in the group of the page before the page leaves."""

from __future__ import annotations

import datetime as dt
import json
import math
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainswitch
from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.stack import start_stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

TROUBLE, ANSWER = ("TrainNonFinite", None), ("TrainIntervention", "applied")
ALERTMANAGER = Path(__file__).resolve().parents[2] / "alertmanager" / "alertmanager.yml"


def page_of(alertmanager: str, run: str) -> dict[tuple[str, str | None], dict[str, Any]]:
    """Return the alerts of the group that pages about `run`, by name and state of an answer."""
    with urllib.request.urlopen(f"{alertmanager}/api/v2/alerts/groups", timeout=5) as response:
        groups = json.load(response)
    return {
        (alert["labels"]["alertname"], alert["labels"].get("state")): alert
        for group in groups
        if group["receiver"]["name"] == "page" and group["labels"].get("run") == run
        for alert in group["alerts"]
    }


def since(alert: dict[str, Any]) -> dt.datetime:
    """Return when an alert began."""
    return dt.datetime.fromisoformat(alert["startsAt"].replace("Z", "+00:00"))


def waits(route: dict[str, Any]) -> float:
    """Return the seconds that a route collects alerts before it sends."""
    return float(route["group_wait"].removesuffix("s"))


def test_a_page_about_nan_says_that_the_run_was_paused(stack_home: Path) -> None:
    """Through trainer, Prometheus and controller the answer joins the alert's group within its group_wait."""
    stack = start_stack(stack_home)
    poison, over = threading.Event(), threading.Event()
    with trainswitch.attach(
        run="told",
        config={"server": {"port": 0, "linger_seconds": 0}, "statistics": {"warmup_steps": 20}},
    ) as switch:

        def train() -> None:
            while not (over.is_set() or switch.should_stop):
                switch.step(math.nan if poison.is_set() else 2.0, grad_norm=1.0)
                poison.clear()
                time.sleep(0.01)

        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        try:
            _wait(lambda: switch.current_step > 200)
            poison.set()
            told = _wait(
                lambda: {TROUBLE, ANSWER} <= (found := page_of(stack.alertmanager, "told")).keys() and found
            )
        finally:
            over.set()
            with ControllerClient(stack.controller, stack.operator_token_file) as client:
                client.issue("told", "stop", {}, "the test is over")
            thread.join(timeout=20)
    answer = told[ANSWER]
    assert answer["annotations"]["description"].strip() == (
        "TrainNonFinite: pause was carried out. Paused runs wait for 'trainswitch resume told'."
    )
    routes = yaml.safe_load(ALERTMANAGER.read_text(encoding="utf-8"))["route"]["routes"]
    (route,) = [route for route in routes if route["receiver"] == "page"]
    assert (since(answer) - since(told[TROUBLE])).total_seconds() < waits(route)


def _wait(condition: Any, seconds: float = 60.0) -> Any:
    """Return what `condition` returns as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found
