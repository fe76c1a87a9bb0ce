"""What the exporter's tests share: a home of their own, and monitors that end with the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trainswitch.config import MonitorConfig
from trainswitch.monitor import Monitor

MonitorFactory = Callable[..., Monitor]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, and no rank in the environment."""
    monkeypatch.setenv("TRAINSWITCH_HOME", str(tmp_path))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRAINSWITCH_HOST", "TRAINSWITCH_ADVERTISE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def new_monitor(home: Path) -> Iterator[MonitorFactory]:
    """Makes monitors on free ports that poll quickly and are closed at the end."""
    with contextlib.ExitStack() as leaving:

        def make(**arguments: Any) -> Monitor:
            settings = {
                "server": {"port": 0, "linger_seconds": 0.0},
                "control": {"poll_interval_seconds": 0.01, "status_interval_seconds": 0.1},
                "ring_records": 1024,
            }
            for section, values in arguments.pop("settings", {}).items():
                if isinstance(values, dict):
                    settings.setdefault(section, {}).update(values)  # type: ignore[attr-defined]
                else:
                    settings[section] = values
            monitor = Monitor(
                run=arguments.pop("run", "run-1"),
                config=MonitorConfig.model_validate(settings),
                **arguments,
            )
            leaving.callback(monitor.close)
            return monitor

        yield make


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return (name, labels without run and rank) → value of an exposition."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = frozenset((k, v) for k, v in sample.labels.items() if k not in ("run", "rank"))
            found[sample.name, labels] = sample.value
    return found


def sample(text: bytes, name: str, **labels: str) -> float | None:
    """Return the value of one series of an exposition, or None."""
    return samples(text).get((name, frozenset(labels.items())))
