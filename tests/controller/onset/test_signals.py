"""The file of signals: what is shipped is sound, and what is wrong in one of a user's own is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from trainswitch.metrics.catalogue import CATALOGUE
from trainswitch_controller.errors import SettingsError, SignalFileError
from trainswitch_controller.onset.signals import SHIPPED, load_signals
from trainswitch_controller.promql import metric_names

GOOD = """
version: 1
signals:
  x: {kind: symptom, harms: weights, expr: 'max(train_loss{run="$run"})', above: 5, name: a, detail: $value}
"""


def test_the_shipped_signals_name_only_metrics_that_are_exported() -> None:
    """Each series that an expression selects is in the catalogue, of this run only."""
    known = {metric.name for metric in CATALOGUE}
    for metric in CATALOGUE:
        known.update(f"{metric.name}_{part}" for part in ("sum", "count", "bucket"))
    for name, signal in load_signals(SHIPPED).signals.items():
        unknown = set(metric_names(signal.query("a"))) - known
        assert not unknown, f"{name} selects {unknown}"
        assert signal.query("a").count("train") <= signal.query("a").count('run="a"') + 1, name


def test_prometheus_takes_every_shipped_expression(onset: Any) -> None:
    """None of them is refused, by Prometheus itself."""
    for name, signal in load_signals(SHIPPED).signals.items():
        answer = requests.post(f"{onset.url}/api/v1/query", data={"query": signal.query("a")}, timeout=5)
        assert answer.ok, f"{name}: {answer.text}"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("above: 5", "above: 5, below: 1"), "a signal has one band"),
        (("above: 5", "abov: 5"), "did you mean 'above'?"),
        (("max(", "max(("), "is not PromQL"),
        (('{run="$run"}', ""), "it asks for every run"),
        (("$value", "5$"), "a dollar sign is followed by a name"),
        (("version: 1", "version: 1\nwindow: 2h"), "3600 points"),
        (("version: 1", "version: 2"), "version = 2"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(tmp_path: Path, change: tuple[str, str], sentence: str) -> None:
    """The sentence names the file and the fault."""
    path = tmp_path / "signals.yml"
    path.write_text(GOOD)
    load_signals(path)
    path.write_text(GOOD.replace(*change))
    with pytest.raises(SignalFileError) as caught:
        load_signals(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_of_ones_own_replaces_the_shipped_one(
    tmp_path: Path, tools: Any, make_server: Callable[..., Any], onset: Any
) -> None:
    """Only what it names is looked at."""
    story = onset.told(train_loss=onset.jump(30, 9.0, 1.0), train_loss_excess_sigmas=onset.jump(60, 9.0))
    path = tmp_path / "signals.yml"
    path.write_text(GOOD)
    server = make_server(prometheus_url=onset.url, onset_signals=path)
    server.fire(tools.alert(run=story.run, starts_at=story.end))
    tools.wait_for(lambda: server.metric("onset_total", result="found") == 1)
    [incident] = server.ask("GET", "/api/v1/incidents").json()["incidents"]
    assert [one["signal"] for one in incident["departures"]] == ["x"]
    assert 28 <= incident["departures"][0]["lead_seconds"] <= 30


def test_settings_without_effect_are_refused(home: Any, tmp_path: Path) -> None:
    """Signals without a Prometheus, and an address that is none."""
    with pytest.raises(SettingsError, match="onset_signals has no effect without prometheus_url"):
        home.settings(onset_signals=tmp_path / "signals.yml")
    with pytest.raises(SettingsError, match="not an HTTP address"):
        home.settings(prometheus_url="localhost:9090")
