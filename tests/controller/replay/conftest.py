"""A real Prometheus, rules and runs for the tests of the replay."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from trainswitch_controller.replay import RecordedRun, Row, Rule, load_rules
from trainswitch_controller.replay.client import PrometheusClient
from trainswitch_controller.replay.server import running_prometheus

MakeRules = Callable[[str], list[Rule]]


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """Return the program; without it nothing here can be tested."""
    found = shutil.which("prometheus")
    if found is None:
        pytest.fail(
            "prometheus is not on PATH: install it, on Debian and Ubuntu with `apt install prometheus`."
        )
    return Path(found)


@pytest.fixture(scope="module")
def url(prometheus: Path) -> Iterator[str]:
    """Run one for the tests of a module; their series have names of their own."""
    with running_prometheus(prometheus) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[PrometheusClient]:
    """Connect to it."""
    connected = PrometheusClient(url)
    yield connected
    connected.close()


@pytest.fixture
def make_rules(tmp_path: Path) -> MakeRules:
    """Return rules of a file with the given text below ``groups:``."""

    def make(text: str) -> list[Rule]:
        path = tmp_path / "rules.yml"
        path.write_text(f"groups:\n{text}", encoding="utf-8")
        return load_rules([path])

    return make


def run_of(losses: Sequence[float | None], name: str = "a") -> RecordedRun:
    """Return a run with these losses."""
    rows = tuple(Row(step=number, loss=loss) for number, loss in enumerate(losses))
    return RecordedRun(name, Path(f"{name}.csv"), rows)
