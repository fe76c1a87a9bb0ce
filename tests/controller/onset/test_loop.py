"""Onsets in the controller's loop: what a rollback gets, what a webhook waits for, and what a storm costs."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from trainswitch.intervention.control_file import CheckpointEntry
from trainswitch_controller.onset import analyst, fetching

Make = Callable[..., Any]

POLICY = """
version: 1
cooldown: 0s
alerts:
  TrainLossUnstable: {ladder: [{action: rollback}, {action: rollback}]}
  TrainNonFinite: {ladder: [{action: pause}]}
"""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rollback wait for its onset on a busy machine, too."""
    monkeypatch.setattr(analyst, "WAIT_S", 20.0)


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def slamming() -> Iterator[tuple[str, list[int]]]:
    """An address that takes each connection and breaks it; and one entry for each so far."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def slam() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listening.accept()[0].close()
                    connections.append(1)

        thread = threading.Thread(target=slam, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", connections
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=5)


def _checkpoint(step: int, kind: Any = "stable") -> CheckpointEntry:
    return CheckpointEntry(step=step, created_at=1.0, kind=kind, size_bytes=1, path=f"/c/{step}")


def _questions(url: str) -> float:
    """Return how many range queries a Prometheus has answered, as it says itself."""
    pattern = r'prometheus_http_requests_total\{code="\d+",handler="/api/v1/query_range"\} (\S+)'
    return sum(float(value) for value in re.findall(pattern, requests.get(f"{url}/metrics", timeout=5).text))


def _rollback(server: Any, outcome: dict[str, Any]) -> dict[str, Any]:
    command: dict[str, Any] = server.command(outcome["command_id"])
    assert command["action"] == "rollback"
    return command


@pytest.mark.usefixtures("patient")
def test_a_rollback_goes_back_to_before_the_onset(
    home: Any, tools: Any, make_server: Make, onset: Any
) -> None:
    """Its first command already says before_step, and what to do without; the episode shows the incident."""
    home.write_policy(POLICY)
    story = onset.told(train_loss_excess_sigmas=onset.jump(60, 9.0))
    home.trainer(story.run).write(step=1199, checkpoints=(_checkpoint(500), _checkpoint(1190)))
    server = make_server(prometheus_url=onset.url)
    [outcome] = server.fire(tools.alert("TrainLossUnstable", run=story.run, starts_at=story.end))
    command = _rollback(server, outcome)
    step = command["params"]["before_step"]
    assert 1199 - 63 <= step <= 1199 - 61
    assert command["params"]["or_oldest"] is True
    assert f"It began after step {step}" in command["reason"]
    [episode] = server.ask("GET", f"/api/v1/episodes?run={story.run}").json()["episodes"]
    assert episode["incident"]["onset_step"] == step
    assert server.metric("onset_total", result="found") == 1


def test_suspects_are_exported_until_a_newer_incident_and_after_a_restart(
    home: Any, tools: Any, make_server: Make, onset: Any
) -> None:
    """Three places at most, steps in no label, alerts outside the policy not at all."""
    story = onset.told(
        train_layer_grad_norm={f"layer=blocks.{n}": onset.jump(10 + 5 * n, 30.0, 1.0) for n in range(5)},
    )
    batch = onset.told(train_nonfinite_total={"source=loss": onset.jump(1, 1.0)})
    name = "incident_suspect_lead_seconds"
    first = make_server(prometheus_url=onset.url)
    for story_, alertname in ((story, "TrainNonFinite"), (batch, "TrainNonFinite"), (story, "Other")):
        first.fire(tools.alert(alertname, run=story_.run, starts_at=story_.end))
    tools.wait_for(lambda: first.metric("onset_total", result="found") == 3)
    for server in (first, make_server(prometheus_url=onset.url)):
        found = [
            (sample.labels["run"], sample.labels["place"], sample.labels["kind"], sample.labels["name"])
            for family in server.controller.metrics.registry.collect()
            if family.name == f"trainswitch_controller_{name}"
            for sample in family.samples
        ]
        assert found == [
            (story.run, "1", "layer", "blocks.4"),
            (story.run, "2", "layer", "blocks.3"),
            (story.run, "3", "layer", "blocks.2"),
            (batch.run, "1", "batch", ""),
        ]


def test_a_deaf_prometheus_holds_one_rollback_for_a_moment_and_no_other(
    home: Any, tools: Any, make_server: Make, deaf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The webhook is answered all the same, without before_step; nobody waits for it again so soon."""
    home.write_policy(POLICY)
    home.trainer()
    monkeypatch.setattr(analyst, "IMPATIENT_S", 1000.0)
    server = make_server(prometheus_url=deaf)
    now = time.time()
    [outcome] = server.fire(tools.alert("TrainLossUnstable", starts_at=now))
    assert "before_step" not in _rollback(server, outcome)["params"]
    assert server.metric("onset_total", result="late") == 1
    monkeypatch.setattr(analyst, "WAIT_S", 1000.0)  # whoever waits now is not answered in time
    server.fire(*(tools.alert("TrainLossUnstable", starts_at=now, rank=str(n)) for n in range(9)))
    server.fire(tools.alert("TrainNonFinite", starts_at=now))
    assert server.metric("onset_total", result="late") == 10


def test_a_prometheus_that_fails_is_left_alone_for_a_while(
    home: Any, tools: Any, make_server: Make, slamming: tuple[str, list[int]]
) -> None:
    """A connection that breaks holds nothing up, is counted, and is not tried again at once."""
    home.write_policy(POLICY)
    home.trainer()
    url, connections = slamming
    server = make_server(prometheus_url=url)
    now = time.time()
    for number in range(3):
        alert = tools.alert("TrainNonFinite", starts_at=now - 10.0 * number, rank=str(number))
        [outcome] = server.fire(alert)
        assert outcome["outcome"] != "invalid_run"
        tools.wait_for(lambda done=number + 1: server.metric("onset_total", result="failed") == done)
    assert len(connections) == 1


def test_a_storm_of_alerts_asks_prometheus_no_more_than_its_share(
    tools: Any, make_server: Make, onset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alerts of one moment are judged by one answer, others within limits, and the rest are dropped."""
    monkeypatch.setattr(fetching, "PER_MINUTE_OF_A_RUN", 4)
    story = onset.told(train_loss_excess_sigmas=onset.jump(60, 9.0))
    server = make_server(prometheus_url=onset.url)
    before = _questions(onset.url)
    server.fire(
        *(tools.alert("Odd", run=story.run, starts_at=story.end - n / 100, rank=str(n)) for n in range(90))
    )
    tools.wait_for(lambda: server.metric("onset_total", result="found") == 90)
    for_one = _questions(onset.url) - before
    assert 10 < for_one < 60
    server.fire(*(tools.alert("Odd", run=story.run, starts_at=story.end - 10 * n) for n in range(1, 401)))

    def results() -> dict[str, float]:
        names = ("found", "nothing", "failed", "late", "limited", "dropped")
        return {name: server.metric("onset_total", result=name) for name in names}

    tools.wait_for(lambda: sum(results().values()) == 490)
    assert results()["limited"] > 0
    assert results()["dropped"] == 300
    assert _questions(onset.url) - before == 4 * for_one


def test_a_resend_is_not_judged_again(tools: Any, make_server: Make, onset: Any) -> None:
    """Neither by the same controller, nor by the next one, which knows it from the journal."""
    story = onset.told(train_loss_excess_sigmas=onset.jump(60, 9.0))
    make_server().fire(tools.alert("Old", run=story.run, starts_at=story.end))  # of which no onset was found
    first = make_server(prometheus_url=onset.url)
    first.fire(*(tools.alert(name, run=story.run, starts_at=story.end) for name in ("Old", "TrainNonFinite")))
    tools.wait_for(lambda: first.metric("onset_total", result="found") == 1)
    before = _questions(onset.url)
    for server in (first, make_server(prometheus_url=onset.url)):
        server.fire(tools.alert(run=story.run, starts_at=story.end))
    fresh = onset.told(train_loss_excess_sigmas=onset.jump(60, 9.0))
    server.fire(tools.alert(run=fresh.run, starts_at=fresh.end))
    tools.wait_for(lambda: server.metric("onset_total", result="found") == 1)
    assert _questions(onset.url) - before < 60
    assert len(first.ask("GET", "/api/v1/incidents").json()["incidents"]) == 2
    assert len(first.ask("GET", f"/api/v1/incidents?run={story.run}").json()["incidents"]) == 1
