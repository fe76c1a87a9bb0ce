"""One run, lived through in front of a real Prometheus and replayed: both see the same alerts."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from trainswitch import Monitor
from trainswitch.config import load_config
from trainswitch_controller.replay import RecordedRun, Row, Rule, load_rules, replay

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "prometheus" / "rules"
RUN = "agree"
PACE = 0.5
SCRAPE = 1.0
LATE = 0.75
"""Seconds by which a busy machine may be late with a step, a scrape or an evaluation."""
ROWS = tuple(
    Row(
        step=number,
        loss=math.nan if number == 76 else 9.0 if 36 <= number < 50 else 2.0 + number * 7 % 11 / 100,
        grad_norm=300.0 if 60 <= number < 66 else 1.0 + number * 5 % 7 / 50,
    )
    for number in range(1, 93)
)
Times = dict[tuple[str, str], list[tuple[float, float]]]
"""(alert, severity) → when it began to fire and was last seen firing, in seconds since the first row."""


@contextlib.contextmanager
def live_prometheus(folder: Path) -> Iterator[str]:
    """Run Prometheus with the committed rules; it scrapes who registers in ``folder/targets``."""
    binary = shutil.which("prometheus")
    assert binary is not None, "prometheus is not on PATH: install the package prometheus."
    config = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(RULES / "*.yml")],
        "scrape_configs": [
            {
                "job_name": "trainswitch",
                "scrape_interval": "1s",
                "scrape_timeout": "900ms",
                "honor_labels": True,
                "file_sd_configs": [
                    {"files": [str(folder / "targets" / "*.json")], "refresh_interval": "1s"}
                ],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: requests.get(f"{url}/-/ready", timeout=1.0).ok, 60.0)
        yield url
    finally:
        process.kill()
        process.wait()


def wait_until(condition: Any, seconds: float) -> None:
    """Ask again and again until the condition holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(requests.RequestException):
            if condition():
                return
        time.sleep(0.05)
    pytest.fail(f"not within {seconds} s")


def query(url: str, expression: str, **more: Any) -> list[dict[str, Any]]:
    """Return what Prometheus answers, at once or over a range."""
    path = "query_range" if more else "query"
    answer = requests.get(f"{url}/api/v1/{path}", params={"query": expression, **more}, timeout=10.0).json()
    result: list[dict[str, Any]] = answer["data"]["result"]
    return result


def live(folder: Path, settings: dict[str, Any]) -> tuple[Times, float]:
    """Train in real time; return what Prometheus said, and until which second it was listened to."""
    with live_prometheus(folder) as url:
        with Monitor(run=RUN, config=settings) as monitor:
            wait_until(lambda: query(url, f'up{{run="{RUN}"}} == 1'), 30.0)
            time.sleep(5.0 - PACE)  # as between a trainer's start and its first step, and in the replay
            first = time.time() + PACE
            for number, row in enumerate(ROWS):
                time.sleep(max(0.0, first + number * PACE - time.time()))
                monitor.step(loss=row.loss, grad_norm=row.grad_norm)
        wait_until(lambda: not query(url, f'up{{run="{RUN}"}}'), 30.0)
        last = time.time() + 5.0
        time.sleep(5.0)
        found: Times = {}
        series = query(
            url, f'ALERTS{{run="{RUN}", alertstate="firing"}}', start=first - 5, end=last, step=0.25
        )
        for one in series:
            key = (one["metric"]["alertname"], one["metric"].get("severity", ""))
            found.setdefault(key, []).extend(spans([at - first for at, _ in one["values"]]))
        return {key: sorted(times) for key, times in found.items()}, last - first


def spans(moments: list[float]) -> Iterator[tuple[float, float]]:
    """Yield the stretches without a gap among moments that are a quarter of a second apart."""
    start = before = moments[0]
    for moment in moments[1:]:
        if moment - before > 0.3:
            yield start, before
            start = moment
        before = moment
    yield start, before


def replayed(folder: Path, settings: dict[str, Any], rules: list[Rule]) -> Times:
    """Replay the run, and return the same of it."""
    binary = shutil.which("prometheus")
    assert binary is not None
    result = replay(
        [RecordedRun(RUN, folder / "agree.csv", ROWS)],
        rules,
        prometheus=Path(binary),
        config=load_config(settings),
        pace=PACE,
        scrape=SCRAPE,
        jobs=1,
    )
    found: Times = {}
    for episode in result.episodes:
        found.setdefault((episode.alert, episode.severity), []).append((episode.start, episode.end))
    return {key: sorted(times) for key, times in found.items()}


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_a_replay_and_a_live_prometheus_see_the_same(tmp_path: Path) -> None:
    """The same alerts fire as often, and begin and end within a scrape and an evaluation of each other.

    Groups with long intervals are left out: a run of a minute has no more than two of their evaluations.
    """
    settings = {
        "server": {"port": 0, "targets_dir": str(tmp_path / "targets")},
        "control": {"folder": str(tmp_path / "control")},
        "checkpoint": {"folder": str(tmp_path / "checkpoints")},
        "statistics": {"warmup_steps": 25, "total_steps": len(ROWS)},
    }
    (tmp_path / "targets").mkdir()
    rules = load_rules([RULES])
    interval = {
        (rule.name, rule.labels.get("severity", "")): rule.interval for rule in rules if rule.is_alert
    }
    fast = {key: SCRAPE + seconds + LATE for key, seconds in interval.items() if seconds <= 5.0}
    lived, listened = live(tmp_path, settings)
    again = replayed(tmp_path, settings, rules)
    assert ("TrainNonFinite", "critical") in lived
    assert len(lived.keys() & fast.keys()) >= 3, lived
    for key, allowed in fast.items():
        live_times = joined(lived.get(key, []), allowed)
        times = joined([span for span in again.get(key, []) if span[0] <= listened], allowed)
        assert len(live_times) == len(times), (key, live_times, times)
        for (start, end), (start_again, end_again) in zip(live_times, times, strict=True):
            assert abs(start - start_again) <= allowed, (key, live_times, times)
            assert abs(end - min(end_again, listened)) <= allowed, (key, live_times, times)


def joined(times: list[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Return spans without the gaps that one who is so much later may not see."""
    found: list[tuple[float, float]] = []
    for start, end in times:
        if found and start - found[-1][1] <= gap:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
