"""A real Prometheus with the stories of runs in it, and a controller that is told of their alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.controller.stories import Prometheus, Story, told_prometheus

from trainswitch_controller.onset import fetching


@pytest.fixture(scope="session")
def onset() -> Iterator[Prometheus]:
    """One Prometheus for all tests of this folder; each has a run of its own."""
    with told_prometheus() as prometheus:
        yield prometheus


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give Prometheus the time that it needs beside other tests."""
    monkeypatch.setattr(fetching, "FETCH_S", 60.0)


@pytest.fixture
def incident_of(
    tools: Any, make_server: Callable[..., Any], onset: Prometheus
) -> Callable[..., dict[str, Any]]:
    """Deliver an alert about a story to a real controller, and return the incident that its API shows."""

    def ask(story: Story, name: str = "TrainNonFinite") -> dict[str, Any]:
        server = make_server(prometheus_url=onset.url)
        server.fire(tools.alert(name, run=story.run, starts_at=story.end))

        def found() -> list[dict[str, Any]]:
            answer = server.ask("GET", f"/api/v1/incidents?run={story.run}")
            incidents: list[dict[str, Any]] = answer.json()["incidents"]
            return incidents

        tools.wait_for(found)
        [incident] = found()
        return incident

    return ask
