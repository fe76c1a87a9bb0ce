"""The committed dashboards: current, complete, and asking only for what is exported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.grafana.queries import PanelQuery, data_panels, panel_queries

from trainswitch.metrics.catalogue import CATALOGUE, Metric

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "grafana" / "dashboards"
UIDS = ("trainswitch-hardware", "trainswitch-ranks", "trainswitch-run")
VALUES = {"datasource": "prometheus", "job": ".+", "run": "demo", "rank": ".+"}

CONTROLLER_METRICS = {
    "trainswitch_controller_alert_age_seconds_bucket",
    "trainswitch_controller_alerts_total",
    "trainswitch_controller_build_info",
    "trainswitch_controller_command_timestamp_seconds",
    "trainswitch_controller_commands_total",
    "trainswitch_controller_webhooks_total",
    "trainswitch_controller_write_failures_total",
}
PROMETHEUS_METRICS = {"ALERTS", "scrape_duration_seconds", "up"}
RECORDS = {
    rule["record"]
    for path in (ROOT / "prometheus" / "rules").glob("*.yml")
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
}
HISTOGRAM_SUFFIXES = {"_bucket": "histogram", "_count": "histogram", "_sum": "histogram"}

needs_sdk = pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="grafana-foundation-sdk needs Python 3.11; the JSON it builds is committed",
)


def load(uid: str) -> dict[str, Any]:
    """Return a committed dashboard."""
    loaded: dict[str, Any] = json.loads((FOLDER / f"{uid}.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module", params=UIDS)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return each committed dashboard in turn."""
    return load(request.param)


@pytest.fixture(scope="module")
def run_dashboard() -> dict[str, Any]:
    """Return the committed dashboard of a run."""
    return load("trainswitch-run")


@pytest.fixture(scope="module")
def queries(dashboard: dict[str, Any]) -> list[PanelQuery]:
    """Return every query of a dashboard, with the variables replaced."""
    return panel_queries(dashboard, VALUES)


def run_dashboards(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/dashboards as a developer does."""
    return subprocess.run(
        [ROOT / "scripts" / "dashboards", *arguments], capture_output=True, text=True, check=False
    )


@needs_sdk
def test_committed_json_is_current() -> None:
    """`scripts/dashboards --check` accepts what is committed, in silence."""
    result = run_dashboards("--check")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@needs_sdk
def test_check_names_stale_missing_and_left_over_files(tmp_path: Path) -> None:
    """`--check` exits with 1 and names, in one sentence, each file that is not what the sources build."""
    assert run_dashboards("--folder", str(tmp_path)).returncode == 0
    (tmp_path / "trainswitch-ranks.json").unlink()
    (tmp_path / "trainswitch-run.json").write_text("{}\n", encoding="utf-8")
    (tmp_path / "old.json").write_text("{}\n", encoding="utf-8")
    result = run_dashboards("--check", "--folder", str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == (
        f"old.json, trainswitch-ranks.json, trainswitch-run.json in {tmp_path} is not what "
        "grafana/builders builds: run scripts/dashboards and commit the result.\n"
    )


@needs_sdk
def test_build_replaces_the_folder(tmp_path: Path) -> None:
    """A build writes every dashboard and removes one whose source is gone."""
    (tmp_path / "old.json").write_text("{}\n", encoding="utf-8")
    assert run_dashboards("--folder", str(tmp_path)).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {f"{uid}.json" for uid in UIDS}
    assert run_dashboards("--check", "--folder", str(tmp_path)).returncode == 0


def test_dashboard_is_read_only_and_shares_its_tooltip(dashboard: dict[str, Any]) -> None:
    """What is changed in the browser would be lost, so it cannot be changed; the tooltip spans all panels."""
    assert dashboard["uid"] in UIDS
    assert dashboard["title"] == "trainswitch / " + dashboard["uid"].removeprefix("trainswitch-").capitalize()
    assert dashboard["editable"] is False
    assert dashboard["graphTooltip"] == 2


def test_dashboards_lead_to_each_other(dashboard: dict[str, Any]) -> None:
    """Each has links to all others, by the tag that all carry, and they keep the run and the time."""
    (link,) = dashboard["links"]
    assert link["tags"] == dashboard["tags"] == ["trainswitch"]
    assert (link["type"], link["includeVars"], link["keepTime"]) == ("dashboards", True, True)


def test_variables(dashboard: dict[str, Any]) -> None:
    """Data source, job, run and rank come in this order; each narrows the next and follows the time range."""
    variables = dashboard["templating"]["list"]
    assert [variable["name"] for variable in variables] == ["datasource", "job", "run", "rank"]
    assert [variable.get("query") for variable in variables] == [
        "prometheus",
        "label_values(train_run_state, job)",
        'label_values(train_run_state{job=~"$job"}, run)',
        'label_values(train_run_state{job=~"$job", run="$run"}, rank)',
    ]
    assert [variable["refresh"] for variable in variables[1:]] == [2, 2, 2]


def test_annotations_keep_short_events(dashboard: dict[str, Any]) -> None:
    """Annotations ask at 1 s; a command lies at the time in its value, an alert at its sample."""
    commands, alerts = dashboard["annotations"]["list"]
    assert (commands["name"], commands["step"], commands["useValueForTime"]) == ("Commands", "1s", True)
    assert commands["expr"] == 'trainswitch_controller_command_timestamp_seconds{run="$run"} * 1000'
    assert (alerts["name"], alerts["step"], alerts["useValueForTime"]) == ("Alerts", "1s", False)


def test_every_panel_explains_itself(dashboard: dict[str, Any]) -> None:
    """Every panel has a title, a description, a unit, a data source variable, and a number of its own."""
    panels = data_panels(dashboard)
    for panel in panels:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert unit_of(panel), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"], panel["title"]
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)


def unit_of(panel: dict[str, Any]) -> str | None:
    """Return the unit of a panel; a heatmap's is that of its y axis."""
    holder = panel["options"]["yAxis"] if panel["type"] == "heatmap" else panel["fieldConfig"]["defaults"]
    unit: str | None = holder.get("unit")
    return unit


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    """No two panels share a cell of the grid of 24 columns."""
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_rates_follow_the_time_range(dashboard: dict[str, Any]) -> None:
    """Ranges are Grafana's variables, so that a graph over days misses no event."""
    for panel in data_panels(dashboard):
        for target in panel["targets"]:
            ranges = set(re.findall(r"\[([^\]]+)\]", target["expr"]))
            assert ranges <= {"$__rate_interval", "$__range"}, panel["title"]


def test_metrics_are_exported(queries: list[PanelQuery]) -> None:
    """Every metric is the trainer's, the controller's, recorded by a rule, or made by Prometheus itself."""
    known = set(exported()) | CONTROLLER_METRICS | PROMETHEUS_METRICS | RECORDS
    for query in queries:
        bare = re.sub(r'"[^"]*"', '""', query.expr)
        names = set(re.findall(r"[A-Za-z_:][\w:]*(?=\{)|(?<![:\w])train(?:switch)?_\w+", bare))
        assert names, query
        assert names <= known, f"{query.title}: {sorted(names - known)}"


def test_matchers_and_buckets_exist(queries: list[PanelQuery]) -> None:
    """A selector's labels, values and bucket bounds are ones that the metric has: others match nothing."""
    metrics = exported()
    for query in queries:
        for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", query.expr):
            if name not in metrics:
                continue
            metric = metrics[name]
            values = dict(metric.labels)
            for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', matchers):
                if label == "le":
                    assert value in {str(bound) for bound in metric.buckets}, query
                else:
                    assert label in {"job", *metric.label_names}, query
                if operator == "=" and values.get(label):
                    assert value in values[label], query


def test_records_are_asked_for_without_a_job(queries: list[PanelQuery]) -> None:
    """What a rule records has no label job, so a matcher on it would match nothing."""
    for query in queries:
        for matchers in re.findall(r"\w+:\w+:\w+\{([^}]*)\}", query.expr):
            assert "job" not in matchers, query


def exported() -> dict[str, Metric]:
    """Return every series name of the trainer's endpoint with its metric."""
    names: dict[str, Metric] = {}
    for metric in CATALOGUE:
        if metric.kind == "histogram":
            names.update({metric.name + suffix: metric for suffix in HISTOGRAM_SUFFIXES})
            if min(metric.buckets) < 0:
                # prometheus_client leaves the sum of a histogram with negative bounds out.
                del names[f"{metric.name}_sum"]
        else:
            names[metric.name] = metric
    return names


def test_every_query_parses(queries: list[PanelQuery], tmp_path: Path) -> None:
    """Prometheus' own parser takes every panel's, variable's and annotation's expression."""
    rules = [{"record": f"query:{index}", "expr": query.expr} for index, query in enumerate(queries)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}), encoding="utf-8")
    result = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert f"{len(queries)} rules found" in result.stdout


def test_every_source_of_queries_is_read(queries: list[PanelQuery], dashboard: dict[str, Any]) -> None:
    """Panels, variables and annotations are all among the queries, and no variable is left in any."""
    titles = {query.title for query in queries}
    assert titles > {"variable run", "annotation Commands", "annotation Alerts"}
    assert {panel["title"] for panel in data_panels(dashboard)} <= titles
    assert not [query for query in queries if "$" in query.expr]
    assert (
        PanelQuery("variable rank", "A", 'count by (rank) (train_run_state{job=~".+", run="demo"})')
        in queries
    )


def test_panels_of_collapsed_rows_are_read() -> None:
    """A collapsed row keeps its panels inside; they are read like the others."""
    panel = {
        "type": "stat",
        "title": "Inner",
        "targets": [{"refId": "B", "expr": 'up{run="${run:regex}"}[$__range]'}],
    }
    dashboard = {
        "panels": [{"type": "row", "title": "Row", "panels": [panel]}],
        "templating": {"list": []},
        "annotations": {"list": []},
    }
    assert panel_queries(dashboard, {"run": "x", "__range": "1h"}) == [
        PanelQuery("Inner", "B", 'up{run="x"}[1h]')
    ]


def test_variable_without_value_is_refused(run_dashboard: dict[str, Any]) -> None:
    """A variable that nobody gave a value is named, with the panel that uses it."""
    with pytest.raises(KeyError, match=r"State, query A uses \$job, which has no value: add it to values\."):
        panel_queries(run_dashboard, {"run": "demo"})


def test_unknown_kind_of_variable_query_is_refused() -> None:
    """A query variable that is not label_values() is named, not skipped."""
    dashboard = {
        "panels": [],
        "templating": {"list": [{"type": "query", "name": "x", "query": "query_result(up)"}]},
        "annotations": {"list": []},
    }
    with pytest.raises(ValueError, match=r"variable 'x' asks 'query_result\(up\)': use label_values"):
        panel_queries(dashboard, {})


def test_data_source_is_provisioned_for_short_scrapes() -> None:
    """The data source has a fixed uid, cannot be edited, and knows the trainers' scrape interval of 1 s."""
    text = (ROOT / "grafana/provisioning/datasources/trainswitch.yml").read_text(encoding="utf-8")
    (source,) = yaml.safe_load(text)["datasources"]
    assert source["uid"] == "trainswitch-prometheus"
    assert source["editable"] is False
    assert source["jsonData"]["timeInterval"] == "1s"
