"""The demo, as a newcomer runs it, and the dashboard on what it leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.conftest import Demo
from tests.grafana.queries import PanelQuery, panel_queries

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

DASHBOARDS = Path(__file__).parents[2] / "grafana" / "dashboards"
SHORT = "250"
"""Steps of a run that need not fill a dashboard."""

MAY_BE_EMPTY = {
    "trainswitch-run": {
        "nothing failed to be written": {"Failed writes, all runs"},
        "no phases and no limits are configured": {
            "Phase of training",
            "Limits in force",
            "Configured limits",
        },
        "no peak_flops is configured": {"Model FLOPs utilisation"},
    },
    "trainswitch-hardware": {
        "there may be no GPU": {
            "Clocks",
            "Device memory",
            "Energy",
            "Fullest memory",
            "GPU utilisation",
            "GPUs",
            "Hottest",
            "Least device memory taken",
            "Memory bandwidth in use",
            "Memory errors",
            "NVLink errors",
            "PyTorch's memory",
            "Power",
            "Power draw",
            "Temperature",
            "Throttled",
            "Throttling",
            "Utilisation",
            "XID errors",
            "XID errors by code",
            "XID errors of the last 15 minutes",
        },
        "nothing leaks": {"Device memory full in", "Host memory full in"},
    },
    "trainswitch-ranks": {
        "a single rank waits for nobody": {
            "Collective time by operation",
            "Collective time by rank",
            "Longest wait",
            "Operations per step",
            "Own time by rank",
            "Stragglers",
            "Waiting",
        },
        "the run is shorter than sampling.checksum": {
            "Different weights",
            "Step of the checksum",
            "Weight checksum by rank",
        },
    },
}
"""Panels of each dashboard that have nothing to show for the demo's run, by the reason."""


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


def recording_rules(prometheus: str) -> dict[str, str]:
    """What Prometheus records, by name: the expressions of its rules."""
    groups = requests.get(f"{prometheus}/api/v1/rules?type=record", timeout=10).json()["data"]["groups"]
    found: dict[str, str] = {}
    for rule in (rule for group in groups for rule in group["rules"]):
        name, expr = rule["name"], f"({rule['query']})"
        found[name] = f"{found[name]} or {expr}" if name in found else expr
    return found


def spelled_out(expr: str, recorded: dict[str, str]) -> str:
    """An expression with what its recorded series stand for; there is one run, so selectors may go."""
    return re.sub(r"\b(\w+:[\w:]+)(\{[^}]*\})?", lambda found: f"({recorded.get(found[1], found[0])})", expr)


@pytest.mark.parametrize("uid", MAY_BE_EMPTY)
def test_every_panel_has_something_to_show(saved: dict[str, Any], uid: str) -> None:
    """Each query of a dashboard runs on the live Prometheus, and each panel has data."""
    values = {"job": "trainswitch", "run": "gpt-demo", "rank": "0"}
    values["__rate_interval"] = values["__range"] = "5m"
    found: dict[str, int] = {}
    recorded = recording_rules(saved["urls"]["prometheus"])
    document = json.loads((DASHBOARDS / f"{uid}.json").read_text(encoding="utf-8"))
    for query in panel_queries(document, values):
        # The run has ended, so its series have, too: look at them as they were a little earlier.
        result = answers(
            query._replace(expr=f"last_over_time(({query.expr})[5m:1s])"), saved["urls"]["prometheus"]
        )
        if not result:
            # Some rules are evaluated once a minute, and the run may live between two such moments.
            result = answers(
                query._replace(expr=f"last_over_time(({spelled_out(query.expr, recorded)})[5m:1s])"),
                saved["urls"]["prometheus"],
            )
        found[query.title] = found.get(query.title, 0) + len(result)
    empty = {title for title, count in found.items() if not count}
    allowed = set().union(*MAY_BE_EMPTY[uid].values())
    assert empty <= allowed
    assert allowed <= found.keys()


def test_a_learning_rate_gone_mad_is_paused_and_saved(demo: Demo) -> None:
    """Gradients that explode lead to a pause with a snapshot; the operator goes back from there."""
    told = demo("--fault", "lr-explosion", "--steps", SHORT)
    assert told["recovered"]
    assert told["alerts"] == ["TrainGradientExplosion"]
    assert told["actions"] == ["pause_and_snapshot"]


def test_a_healthy_run_is_left_alone(demo: Demo) -> None:
    """Without a fault there is not one intervention."""
    told = demo("--fault", "none", "--steps", SHORT)
    assert told["interventions"] == 0
    assert told["recovered"]
