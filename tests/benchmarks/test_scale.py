"""The scale benchmark measures what it says; its figures are not tested here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from benchmarks.scale.command import WrongOption, _numbers
from benchmarks.scale.fleet import Choir
from benchmarks.scale.measure import Plan, _firing, _fleet, _scrapes
from benchmarks.scale.server import SCRAPE_SECONDS, started
from benchmarks.scale.watch import Group, quantile, watch
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from trainswitch.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
SELDOM = {
    "train_process_state",
    "train_loss_scale",
    "train_model_flops_utilization_ratio",
    "train_limit_steps",
    "train_phase",
    "train_gpu_xid_timestamp_seconds",
}
"""What a healthy rank has only with a sidecar, mixed precision, or settings of its own."""


@pytest.fixture(scope="module")
def choir() -> Choir:
    """The voices of runs of 16 ranks; living through the warm-up takes them a moment."""
    return Choir(16)


def samples(page: bytes) -> list[Sample]:
    """Return the samples of a page."""
    return [one for family in text_string_to_metric_families(page.decode()) for one in family.samples]


def test_a_rank_serves_what_a_real_one_does(choir: Choir) -> None:
    """Every metric of the catalogue is on the first rank's page, so a new one cannot be forgotten here."""
    families = text_string_to_metric_families(choir.page("a", 0).decode())
    served = {family.name for family in families if family.samples}
    wanted = {metric.name.removesuffix("_total") for metric in CATALOGUE if metric.name not in SELDOM}
    assert wanted - served == set()


def test_each_rank_speaks_in_its_own_name(choir: Choir) -> None:
    """Run, rank, machine and card are a rank's own, though ranks share a voice; only the first has layers."""
    for rank, machine in ((0, 0), (1, 0), (9, 1)):
        page = choir.page("a", rank)
        assert b"@" not in page
        for one in samples(page):
            assert one.labels["run"] == "a"
            assert one.labels["rank"] == str(rank)
            assert one.labels.get("node", f"a-node-{machine}") == f"a-node-{machine}"
            assert one.labels.get("uuid", f"GPU-a-{rank}") == f"GPU-a-{rank}"
        assert (b"train_layer_grad_norm{" in page) == (rank == 0)


def test_the_ranks_step_and_agree(choir: Choir) -> None:
    """Counters move from step to step, all ranks are at the same step, and replicas have equal weights."""

    def values(rank: int, name: str) -> list[float]:
        return [one.value for one in samples(choir.page("a", rank)) if one.name == name]

    before = values(1, "train_steps_total")[0]
    choir.step()
    assert values(1, "train_steps_total") == [before + 1] == values(0, "train_steps_total")
    assert values(0, "train_weight_checksum") == values(1, "train_weight_checksum") != []
    assert values(1, "train_baseline_ready") == [1.0]


def test_the_fleet_serves_what_it_registered_and_ends_with_its_parent(tmp_path: Path) -> None:
    """A file and a port for each rank of each run; closing standard input ends the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.scale.fleet", str(tmp_path), "2", "3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) == 6
    for file in files:
        group = json.loads(file.read_text())[0]
        url = f"http://{group['targets'][0]}/metrics"
        with urllib.request.urlopen(url) as answer:
            page = answer.read()
        assert {(one.labels["run"], one.labels["rank"]) for one in samples(page)} == {
            (group["labels"]["run"], group["labels"]["rank"])
        }
    process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("durations", "missed", "in_time"),
    [([0.2, 1.0], 0, True), ([0.2, 1.1], 0, False), ([0.2], 1, False), ([], 0, False)],
)
def test_a_group_is_in_time_only_if_every_evaluation_was(
    durations: list[float], missed: float, in_time: bool
) -> None:
    """One long, one left out, or none at all: each misses the bar."""
    group = Group("f.yml", "g", 1.0, durations, samples=0.0, iterations=2.0, missed=missed)
    assert group.in_time is in_time


def test_a_quantile_is_a_value_that_was_measured() -> None:
    """Nothing is interpolated, and the largest of few stands for their 99th percentile."""
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile(range(1, 201), 0.99) == 198


@pytest.mark.parametrize("text", ["", "x", "64,64", "64,8", "0,8", "64,-1", "24"])
def test_numbers_of_ranks_that_cannot_be_measured_are_refused(text: str) -> None:
    """No number, not ascending, or no whole number of runs of 16."""
    with pytest.raises(WrongOption, match="--ranks"):
        _numbers(text, 16)
    assert _numbers("8,64", 16) == [8, 64]


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_rule_groups_are_timed_in_a_real_prometheus(tmp_path: Path) -> None:
    """All groups of the rule files are seen evaluating, on ranks that are all scraped and fire no alert."""
    binary = shutil.which("prometheus")
    assert binary is not None
    plan = Plan(ranks=2, ranks_of_a_run=2, seconds=30, fill=0)
    with _fleet(tmp_path / "targets", plan) as ranks, started(tmp_path, Path(binary)) as server:
        assert server.rules() == []
        server.load_rules()
        deadline = time.monotonic() + 60
        while not server.query("run:train_steps:count") and time.monotonic() < deadline:
            time.sleep(0.5)
        phase = watch(server, ranks, 12.0)
        per_rank, _ = _scrapes(server, 2)
        firing = _firing(server)
    assert firing == {}
    assert per_rank > 300
    assert phase.load.series > 2 * per_rank
    assert phase.load.samples_per_second > 0
    at_each_scrape = [group for group in phase.groups if group.interval == SCRAPE_SECONDS]
    assert {group.name for group in at_each_scrape} >= {"numerics.rules", "loss.rules", "gradients.rules"}
    for group in at_each_scrape:
        assert 2 <= len(group.durations) <= 4
        assert group.iterations >= len(group.durations) - 1
    assert any(group == "numerics.rules" for group, _ in phase.rules)
