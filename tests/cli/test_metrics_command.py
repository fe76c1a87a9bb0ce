"""The catalogue as documentation: complete, counted as it is served, and current where it is committed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.support import Finished, Run

from trainswitch.metrics.catalogue import CATALOGUE
from trainswitch.metrics.registry import MetricRegistry
from trainswitch_controller.cli import metrics_reference as reference

COMMITTED = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_every_metric_is_listed_once_in_a_family(run: Run) -> None:
    """The list has all of the catalogue; a new metric without a family or an example fails here."""
    finished = run("metrics")
    assert (finished.code, finished.err) == (0, "")
    names = re.findall(r"^(train\w+) ", finished.out, re.MULTILINE)
    assert sorted(names) == sorted(metric.name for metric in CATALOGUE)
    assert f"At most {reference.total(CATALOGUE)} series per rank" in finished.out
    assert "Traceback" not in finished.err


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("train_step", "progress"),
        ("train_step_seconds", "time"),
        ("train_step_loss_deviation_sigmas", "loss"),
        ("train_step_grad_norm", "gradients"),
        ("train_loss_scale", "numerics"),
        ("train_eval", "evaluation"),
        ("trainswitch_commands_total", "control"),
        ("trainswitch_build_info", "self"),
    ],
)
def test_the_longest_prefix_decides_the_family(name: str, family: str) -> None:
    """A name stands in the family that DESIGN puts it in, also where another family's prefix fits."""
    assert name in [metric.name for metric in reference.families()[family]]


def test_series_are_counted_as_they_are_served() -> None:
    """For metrics whose series all exist at the start, the count is that of the exposition."""
    text = MetricRegistry({"run": "r", "rank": "0"}).render().decode()
    served: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        served[family.name] = len(family.samples)
    compared = 0
    for metric in CATALOGUE:
        if metric.kind != "gauge" and not metric.collected and all(values for _, values in metric.labels):
            assert reference.series(metric).fixed == served[metric.name.removesuffix("_total")], metric.name
            compared += 1
    assert compared > 10


def test_json_gives_every_metric_with_its_series(run: Run) -> None:
    """A label's values are null where only a run knows them; the totals add up."""
    finished = run("metrics", "--json")
    document = json.loads(finished.out)
    metrics = {metric["name"]: metric for family in document["families"] for metric in family["metrics"]}
    assert len(metrics) == len(CATALOGUE)
    assert metrics["train_learning_rate"]["labels"] == {"group": None}
    assert metrics["train_learning_rate"]["series"] == {"fixed": 1, "per": ["group"], "in_example": 2}
    assert metrics["train_step_seconds"]["unit"] == "s"
    assert metrics["train_step_seconds"]["buckets"][0] == 0.001
    in_example = sum(metric["series"]["in_example"] for metric in metrics.values())
    assert in_example == document["series_in_example"]
    assert in_example == sum(family["series_in_example"] for family in document["families"])


def test_the_committed_reference_is_checked(run: Run, tmp_path: Path) -> None:
    """``--check`` says nothing about the current text; of another it shows what differs, and ends with 1."""
    printed = run("metrics", "--markdown")
    path = tmp_path / "metrics.md"
    path.write_text(printed.out, encoding="utf-8")
    assert run("metrics", "--check", str(path)) == Finished(0, "", "")
    path.write_text(printed.out.replace("| counter |", "| gauge |", 1), encoding="utf-8")
    finished = run("metrics", "--check", str(path))
    assert finished.code == 1
    assert "+| `train_" in finished.out
    assert f"{path} is not current: write it with 'trainswitch metrics --markdown > {path}'" in finished.err


def test_docs_metrics_md_is_current(run: Run) -> None:
    """The committed reference is what the command writes."""
    assert run("metrics", "--check", str(COMMITTED)).code == 0


def test_a_missing_reference_ends_with_1(run: Run, tmp_path: Path) -> None:
    """One sentence names the file and the command that writes it."""
    finished = run("metrics", "--check", str(tmp_path / "none.md"))
    assert finished.code == 1
    assert finished.err.count("\n") == 1
    assert "none.md" in finished.err


def test_options_that_exclude_each_other_are_refused(run: Run) -> None:
    """None of them is silently ignored."""
    assert run("metrics", "--json", "--markdown").code == 2
    assert run("metrics", "--markdown", "--check", "x").code == 2


def test_every_row_of_the_reference_has_as_many_cells_as_its_header() -> None:
    """No help text breaks a table."""
    for block in reference.markdown().split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 1
