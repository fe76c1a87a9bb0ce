"""Rules, Prometheus' and Alertmanager's configuration, runbooks and policies: each is valid, and they agree.

The rules' behaviour is pinned by ``prometheus/tests/*.test.yml``, which `test_promtool_cases_hold` runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainswitch.intervention.commands import ACTIONS
from trainswitch.metrics.catalogue import CATALOGUE
from trainswitch_controller.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "prometheus"
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))
CASE_FILES = sorted((PROMETHEUS / "tests").glob("*.test.yml"))
POLICIES = sorted((ROOT / "policies").glob("*.yml"))
ALERTMANAGER = ROOT / "alertmanager" / "alertmanager.yml"
AREAS = {
    *("numerics", "gradients", "loss", "schedule", "validation", "data"),
    *("resources", "ranks", "liveness", "control"),
}
FAST_AREAS = {"numerics", "gradients", "loss"}
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
COMMANDS = {"status", "commands", "episodes", "incidents", *(action.replace("_", "-") for action in ACTIONS)}
ALWAYS_FIRING = {"Watchdog"}
OF_NO_RUN = {"TrainControllerDown", "TrainControllerLeaderless", "TrainWatchdogMissing"}
ANSWERS = {"TrainIntervention"}
"""No trouble: what the controller did about one, told by state so that people hear when it changes."""


def tool(name: str) -> str:
    """Return the path of `name`, or fail with the way to get it: a check that is skipped is no check."""
    path = shutil.which(name)
    if path is None:
        package = {"promtool": "prometheus", "amtool": "prometheus-alertmanager"}[name]
        pytest.fail(f"{name} is not on PATH: install it, on Debian and Ubuntu with `apt install {package}`.")
    return path


def check(*command: str | Path) -> str:
    """Run a command that must succeed, and return what it prints."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[1:]}:\n{done.stdout}{done.stderr}"
    return done.stdout


def receivers(labels: dict[str, str]) -> str:
    """Return the receivers, separated by commas, to which Alertmanager routes an alert with these labels."""
    pairs = [f"{name}={value}" for name, value in labels.items()]
    return check(tool("amtool"), "config", "routes", "test", f"--config.file={ALERTMANAGER}", *pairs).strip()


def load(path: Path) -> Any:
    """Return a YAML file's content."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules_of(path: Path) -> list[dict[str, Any]]:
    """Return all rules of a rule file, records and alerts."""
    return [rule for group in load(path)["groups"] for rule in group["rules"]]


RULES = [rule for path in RULE_FILES for rule in rules_of(path)]
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
ALERTS = [rule for rule in RULES if "alert" in rule]
NAMES = {rule["alert"] for rule in ALERTS}
each_alert = pytest.mark.parametrize(
    "rule", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels'].get('severity')}"
)


def metrics_of(promql: str) -> set[str]:
    """Return the metric and record names of an expression."""
    text = re.sub(r'"[^"]*"', '""', promql)
    text = re.sub(r"\{[^}]*\}", "{}", text)
    text = re.sub(r"\b(on|by|ignoring|without|group_left|group_right)\s*\([^)]*\)", " ", text)
    keywords = {"and", "or", "unless", "bool", "offset", "Inf", "NaN"}
    text = re.sub(r"\[[^\]]*\]|\b\d\w*", " ", text)  # ranges, numbers and durations
    names = re.findall(r"\b[a-zA-Z_][\w:]*\b(?!\s*\()", text)
    return set(names) - keywords


def exported_names() -> set[str]:
    """Return every series name of the trainer's endpoint."""
    suffixes = {"gauge": ("",), "counter": ("",), "histogram": ("_bucket", "_count", "_sum")}
    return {metric.name + suffix for metric in CATALOGUE for suffix in suffixes[metric.kind]}


def controller_names() -> set[str]:
    """Return every series name of the controller's endpoint."""
    families = list(Metrics((), time.time).registry.collect())
    return {sample.name for family in families for sample in family.samples} | {
        family.name for family in families
    }


def expectations(path: Path) -> list[tuple[str, bool]]:
    """Return (alert, whether it shall fire) for each expectation about an alert in a file of cases."""
    found = []
    for case in load(path)["tests"]:
        found += [(one["alertname"], bool(one["exp_alerts"])) for one in case.get("alert_rule_test", [])]
    return found


def test_there_is_a_rule_file_for_each_area_and_cases_for_each_rule_file() -> None:
    """The areas of this version have rules, and none lacks cases or has cases without rules."""
    assert {path.stem for path in RULE_FILES} == AREAS
    assert {path.name.split(".")[0] for path in CASE_FILES} == AREAS


def test_promtool_accepts_the_rules() -> None:
    """Every rule parses, and no two records of a group write the same series."""
    check(tool("promtool"), "check", "rules", "--lint-fatal", *RULE_FILES)


def test_promtool_accepts_prometheus_configuration() -> None:
    """prometheus.yml is valid and finds the rules beside it."""
    output = check(tool("promtool"), "check", "config", PROMETHEUS / "prometheus.yml")
    assert f"{len(RULE_FILES)} rule files found" in output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.name)
def test_promtool_cases_hold(path: Path) -> None:
    """The rules fire where the cases say so, and stay silent where they say so."""
    check(tool("promtool"), "test", "rules", path)


@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.name)
def test_each_case_is_named_by_a_sentence(path: Path) -> None:
    """A failing case says which behaviour is broken."""
    names = [case["name"] for case in load(path)["tests"]]
    assert len(set(names)) == len(names)
    for name in names:
        assert name[0].isupper(), name
        assert name.endswith("."), name
        assert len(name.split()) > 5, name


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_alert_has_cases_that_fire_and_cases_that_do_not(name: str) -> None:
    """A rule that never fires, or always, passes one kind of case; the Watchdog fires always by design."""
    outcomes = {fires for path in CASE_FILES for alert, fires in expectations(path) if alert == name}
    assert outcomes == ({True} if name in ALWAYS_FIRING else {True, False})


def test_cases_expect_only_alerts_that_exist() -> None:
    """A misspelt alert in a case that expects silence would hold for ever."""
    assert {alert for path in CASE_FILES for alert, _ in expectations(path)} <= NAMES
    for path in CASE_FILES:
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r'alertname="(\w+)"', text)) <= NAMES


@each_alert
def test_each_alert_is_labelled_and_annotated(rule: dict[str, Any]) -> None:
    """Severity, a constant summary, a description, and the address of the runbook."""
    allowed = {"none"} if rule["alert"] in ALWAYS_FIRING | ANSWERS else {"info", "warning", "critical"}
    assert rule["labels"]["severity"] in allowed
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    summary = rule["annotations"]["summary"]
    assert "{{" not in summary
    assert summary.endswith(".")
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"


@each_alert
def test_each_alert_is_one_episode_per_run(rule: dict[str, Any]) -> None:
    """An alert per rank would cause an intervention per rank; those about the controller are of no run."""
    if rule["alert"] in ALWAYS_FIRING:
        return
    outermost = re.findall(r"^(max|min|count) by \((.*?)\)", rule["expr"], flags=re.MULTILINE)
    assert outermost
    expected = "run, state" if rule["alert"] in ANSWERS else "job" if rule["alert"] in OF_NO_RUN else "run"
    assert {labels for _, labels in outermost} == {expected}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_alert_has_a_runbook(name: str) -> None:
    """A page with the four headings, which names only commands that exist."""
    text = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == HEADINGS
    assert set(re.findall(r"trainswitch ([a-z-]+) RUN", text)) <= COMMANDS


def test_each_runbook_is_of_an_alert() -> None:
    """A page whose alert was renamed would never be opened."""
    assert {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} == NAMES


def test_the_rules_read_only_what_is_exported_or_recorded() -> None:
    """A rule on a metric that nobody exports is silent for ever."""
    known = exported_names() | controller_names() | RECORDS | {"up", "ALERTS"}
    for rule in RULES:
        read = metrics_of(rule["expr"])
        assert read or rule.get("alert") in ALWAYS_FIRING
        unknown = read - known
        assert not unknown, f"{rule.get('alert') or rule['record']} reads {unknown}"


def test_each_record_is_read_by_a_rule() -> None:
    """A record that nothing reads costs every second for nothing."""
    text = "\n".join(rule["expr"] + str(rule.get("annotations", "")) for rule in RULES)
    assert {name for name in RECORDS if name not in text} == set()


def test_records_are_named_level_metric_operation() -> None:
    """The level says by which labels a record is aggregated."""
    for name in RECORDS:
        assert re.fullmatch(r"(run|rank|gpu):train_\w+:\w+", name), name


def test_relative_limits_are_bounds_of_their_histograms() -> None:
    """A bucket that does not exist makes its rule silent for ever."""
    buckets = {metric.name: metric.buckets for metric in CATALOGUE if metric.buckets}
    found = re.findall(r'(\w+)_bucket\{(?:[^}]*, )?le="([^"]+)"\}', "\n".join(rule["expr"] for rule in RULES))
    assert found
    for name, bound in found:
        assert bound in {str(float(one)) for one in buckets[name]}, (name, bound)


@each_alert
def test_only_critical_alerts_act_and_their_actions_exist(rule: dict[str, Any]) -> None:
    """The controller is sent critical alerts with an action; each must be one that a trainer knows."""
    if "action" in rule["labels"]:
        assert rule["labels"]["severity"] == "critical"
        assert rule["labels"]["action"] in ACTIONS


def test_a_hung_or_lost_run_asks_for_no_action() -> None:
    """A loop that ends no step reads no command, so these two are for people."""
    labels = {rule["alert"]: rule["labels"] for rule in ALERTS}
    assert "action" not in labels["TrainHung"]
    assert "action" not in labels["TrainTargetDown"]


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_policies_answer_exactly_the_alerts_that_ask_for_an_action(path: Path) -> None:
    """An alert without an entry would be journaled only; an entry without an alert has no effect."""
    assert set(load(path)["alerts"]) == {rule["alert"] for rule in ALERTS if "action" in rule["labels"]}


def test_the_conservative_policy_begins_with_the_action_that_the_rule_names() -> None:
    """The label `action` and the default policy tell the same story."""
    ladders = load(ROOT / "policies" / "conservative.yml")["alerts"]
    for rule in ALERTS:
        if "action" in rule["labels"]:
            assert ladders[rule["alert"]]["ladder"][0]["action"] == rule["labels"]["action"]


def test_fast_detectors_run_as_often_as_the_trainers_are_scraped() -> None:
    """What may act later takes at most 10 s; evaluations, which come minutes apart, 15 s."""
    config = load(PROMETHEUS / "prometheus.yml")
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert set(jobs) == {"trainswitch", "trainswitch-controller", "prometheus", "alertmanager"}
    assert jobs["trainswitch"]["scrape_interval"] == config["global"]["evaluation_interval"] == "1s"
    assert jobs["trainswitch"]["honor_labels"] is True
    assert jobs["trainswitch"]["sample_limit"] > 0
    for path in RULE_FILES:
        for group in load(path)["groups"]:
            if any("action" in rule.get("labels", {}) for rule in group["rules"]):
                slow = {"15s"} if path.stem == "validation" else {"5s", "10s"}
                allowed = {None} if path.stem in FAST_AREAS else {None, *slow}
                assert group.get("interval") in allowed, group["name"]


def test_amtool_accepts_alertmanagers_configuration() -> None:
    """alertmanager.yml is valid."""
    check(tool("amtool"), "check-config", ALERTMANAGER)


@each_alert
def test_each_alert_is_routed_to_whom_it_concerns(rule: dict[str, Any]) -> None:
    """The Watchdog: the controller; critical with an action: it and a page; the others by severity."""
    labels = {"alertname": rule["alert"], "run": "a", **rule["labels"]}
    if rule["alert"] in ALWAYS_FIRING:
        expected = "controller"
    elif rule["labels"]["severity"] == "critical" and "action" in rule["labels"]:
        expected = "controller,page"
    else:
        expected = {"critical": "page", "warning": "people", "info": "digest", "none": "page"}[
            rule["labels"]["severity"]
        ]
    assert receivers(labels) == expected


def test_a_warning_with_an_action_does_not_reach_the_controller() -> None:
    """Only critical alerts act, also where somebody labels a warning of their own with an action."""
    assert receivers({"alertname": "Mine", "run": "a", "severity": "warning", "action": "pause"}) == "people"


def test_the_controllers_route_sends_each_alert_by_itself_and_at_once() -> None:
    """Grouping, waiting or cutting short would delay or lose an alert that must act."""
    config = load(ALERTMANAGER)
    route = config["route"]["routes"][0]
    assert (route["receiver"], route["group_by"]) == ("controller", ["..."])
    assert (route["group_wait"], route["group_interval"], route["continue"]) == ("0s", "1s", True)
    (webhook,) = next(one for one in config["receivers"] if one["name"] == "controller")["webhook_configs"]
    assert webhook["max_alerts"] == 0
    assert webhook["send_resolved"] is True
    assert "credentials_file" in webhook["http_config"]["authorization"]


def test_inhibition_names_alerts_that_exist() -> None:
    """A misspelt alert in an inhibition rule mutes nothing, or lets everything through."""
    for rule in load(ALERTMANAGER)["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            label, _, value = matcher.partition("=")
            if label == "alertname":
                assert set(value.strip('~"').split("|")) <= NAMES
