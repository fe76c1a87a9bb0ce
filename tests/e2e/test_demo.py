"""The demo, as a newcomer runs it, and the dashboard on what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.conftest import Demo
from tests.grafana.queries import PanelQuery, panel_queries

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

DASHBOARD = Path(__file__).parents[2] / "grafana" / "dashboards" / "trainswitch-run.json"

MAY_BE_EMPTY = {"Failed writes, all runs": "nothing failed to be written"}
"""Panels that have nothing to show for the demo's run, with the reason."""


@pytest.fixture(scope="module")
def saved(demo: Demo) -> dict[str, Any]:
    """A demo with a poisoned batch whose stack is still up."""
    return demo("--fault", "nan-batch", "--keep")


def test_a_poisoned_run_is_paused_and_saved(saved: dict[str, Any]) -> None:
    """Every stage is seen in the part that owns it, in order; one intervention; the loss comes back."""
    assert saved["recovered"]
    assert (saved["alerts"], saved["actions"]) == (["TrainNonFinite"], ["pause"])
    assert saved["operator_actions"] == ["snapshot", "rollback", "reduce_lr", "resume"]
    stages = list(saved["timeline"].values())
    assert None not in stages
    assert stages == sorted(stages)
    assert 0 < saved["detect_s"] < saved["apply_s"]


def answers(query: PanelQuery, prometheus: str) -> list[Any]:
    """What Prometheus has for one panel's query."""
    response = requests.get(f"{prometheus}/api/v1/query", params={"query": query.expr}, timeout=10)
    document = response.json()
    assert document["status"] == "success", f"{query.title}: {document.get('error')}: {query.expr}"
    result: list[Any] = document["data"]["result"]
    return result


def test_every_panel_has_something_to_show(saved: dict[str, Any]) -> None:
    """Each query of the dashboard runs on the live Prometheus, and each panel has data."""
    values = {"job": "trainswitch", "run": "gpt-demo", "rank": "0"}
    values["__rate_interval"] = values["__range"] = "5m"
    found: dict[str, int] = {}
    for query in panel_queries(json.loads(DASHBOARD.read_text(encoding="utf-8")), values):
        # The run has ended, so its series have, too: look at them as they were a little earlier.
        result = answers(
            query._replace(expr=f"last_over_time(({query.expr})[5m:1s])"), saved["urls"]["prometheus"]
        )
        found[query.title] = found.get(query.title, 0) + len(result)
    empty = {title for title, count in found.items() if not count}
    assert empty == MAY_BE_EMPTY.keys()


def test_a_learning_rate_gone_mad_is_paused_and_saved(demo: Demo) -> None:
    """Gradients that explode lead to a pause with a snapshot; the operator goes back from there."""
    told = demo("--fault", "lr-explosion")
    assert told["recovered"]
    assert told["alerts"] == ["TrainGradientExplosion"]
    assert told["actions"] == ["pause_and_snapshot"]


def test_a_healthy_run_is_left_alone(demo: Demo) -> None:
    """Without a fault there is not one intervention."""
    told = demo("--fault", "none")
    assert told["interventions"] == 0
    assert told["recovered"]
