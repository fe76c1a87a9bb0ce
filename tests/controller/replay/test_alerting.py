"""`for` and `keep_firing_for` as Prometheus applies them, with promtool's rule manager as the judge."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainswitch_controller.replay.alerting import play_alerts
from trainswitch_controller.replay.rule_files import load_rules
from trainswitch_controller.replay.series import Series, sorted_labels
from trainswitch_controller.replay.timeline import Grid

EVALUATIONS = 80


def rules_file(folder: Path, hold: int, keep: int) -> Path:
    """Write a file with one alert."""
    rule: dict[str, Any] = {
        "alert": "A",
        "expr": "x > 0",
        "for": f"{hold}s",
        "labels": {"severity": "critical"},
    }
    if keep:
        rule["keep_firing_for"] = f"{keep}s"
    path = folder / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "a", "interval": "1s", "rules": [rule]}]}))
    return path


def results(pattern: list[int]) -> Series:
    """Return the alert's results: one wherever the pattern has a 1."""
    series = Series(sorted_labels({"run": "a", "severity": "critical", "alertname": "A"}))
    for index, present in enumerate(pattern):
        if present:
            series.add(index, 1.0)
    return series


@pytest.mark.parametrize(("hold", "keep"), [(0, 0), (1, 0), (4, 0), (0, 3), (2, 5)])
def test_alerts_fire_when_prometheus_says_so(tmp_path: Path, hold: int, keep: int) -> None:
    """On random results, promtool finds each alert firing at exactly the same evaluations."""
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is not on PATH: install the package prometheus."
    path = rules_file(tmp_path, hold, keep)
    draw = random.Random(hold * 100 + keep)
    pattern: list[int] = []
    while len(pattern) < EVALUATIONS:
        pattern += [draw.randint(0, 1)] * draw.randint(1, 6)
    pattern = pattern[:EVALUATIONS]
    spans, _ = play_alerts(load_rules([path])[0], [results(pattern)], Grid(0, 1000), EVALUATIONS)
    firing = {index for span in spans for index in range(span.start, span.end + 1)}
    assert 0 < len(firing) < EVALUATIONS
    alert = {"exp_labels": {"severity": "critical", "run": "a"}, "exp_annotations": {}}
    cases = {
        "rule_files": [path.name],
        "evaluation_interval": "1s",
        "tests": [
            {
                "interval": "1s",
                "input_series": [{"series": 'x{run="a"}', "values": " ".join(map(str, pattern))}],
                "alert_rule_test": [
                    {
                        "eval_time": f"{index}s",
                        "alertname": "A",
                        "exp_alerts": [alert] if index in firing else [],
                    }
                    for index in range(EVALUATIONS)
                ],
            }
        ],
    }
    test = tmp_path / "rules.test.yml"
    test.write_text(json.dumps(cases))
    done = subprocess.run([promtool, "test", "rules", str(test)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_rules_see_pending_and_firing_alerts(tmp_path: Path) -> None:
    """ALERTS says in which state an alert is, ALERTS_FOR_STATE since when it is active."""
    rule = load_rules([rules_file(tmp_path, 2, 0)])[0]
    _, written = play_alerts(rule, [results([0, 1, 1, 1, 1, 0, 1])], Grid(1000, 1000), 8)
    found = {
        (dict(series.labels)["__name__"], dict(series.labels).get("alertstate")): [
            (one.start, list(one.values)) for one in series.stretches
        ]
        for series in written
    }
    assert found == {
        ("ALERTS", "pending"): [(1, [1.0, 1.0]), (6, [1.0])],
        ("ALERTS", "firing"): [(3, [1.0, 1.0])],
        ("ALERTS_FOR_STATE", None): [(1, [2.0] * 4), (6, [7.0])],
    }
