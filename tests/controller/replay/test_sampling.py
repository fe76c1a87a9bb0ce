"""A log on its way through the aggregator: records, scrapes, and the times of both."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.controller.replay.conftest import MakeRules, run_of

from trainswitch.config import MonitorConfig
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.metrics.catalogue import CATALOGUE
from trainswitch.recording.records import FIRST_LEARNING_RATE, Kind, Record, Value
from trainswitch.recording.ring import StepRing
from trainswitch.version import version
from trainswitch_controller.replay import RecordedRun, Row
from trainswitch_controller.replay.demand import Demand
from trainswitch_controller.replay.records import description, records
from trainswitch_controller.replay.sampling import TARGET, Scraped, scrape_run
from trainswitch_controller.replay.series import Series, sorted_labels
from trainswitch_controller.replay.timeline import Timeline

TIMELINE = Timeline(1.0, 1.0)
ROWS = (
    Row(step=1, evaluations={"eval_loss": 3.0}),
    Row(step=1, loss=2.0, grad_norm=1.0, learning_rate=0.1, tokens_per_s=100.0, step_time_s=4.0, epoch=0.5),
    Row(step=5, loss=math.nan, grad_norm=1.5, step_time_s=2.0),
    Row(loss=2.5, step_time_s=8.0),
    Row(step=5, evaluations={"eval_loss": 2.0, "eval_accuracy": 0.5}),
)


def run_with(rows: tuple[Row, ...], config: MonitorConfig | None = None) -> RecordedRun:
    """Return a run of these rows."""
    return RecordedRun("a", Path("a.csv"), rows)


def demand_for(make_rules: MakeRules, expression: str, interval: str = "1s") -> Demand:
    """Return what a rule with this expression asks for."""
    group = f"  - {{name: a, interval: {interval}, rules: [{{alert: A, expr: '{expression}'}}]}}"
    return Demand(make_rules(group))


def scraped(
    run: RecordedRun, make_rules: MakeRules, pattern: str, config: MonitorConfig | None = None
) -> Scraped:
    """Scrape a run for the metrics whose names match."""
    demand = demand_for(make_rules, f'{{__name__=~"{pattern}"}}')
    return scrape_run(run, config or MonitorConfig(), demand, TIMELINE, ())


def one(found: Scraped, name: str, **labels: str) -> Series:
    """Return the series with a name and some labels."""
    wanted = {"__name__": name, **labels}.items()
    (series,) = (series for series in found.series if wanted <= dict(series.labels).items())
    return series


def steps(found: list[Record]) -> list[Record]:
    """Return the records of steps among others."""
    return [record for record in found if record.kind == Kind.STEP]


def test_rows_become_the_records_of_a_trainer() -> None:
    """Evaluations are no steps, steps without a number are numbered, and the run says how it goes."""
    found = list(records(run_with(ROWS), TIMELINE))
    assert [(Kind(record.kind).name, record.label, record.step) for record in found] == [
        ("EVALUATION", "eval_loss", 0),
        ("PHASE", "evaluate", 0),
        ("STATE", "running", 1),
        ("STEP", "", 1),
        ("STEP", "", 5),
        ("STEP", "", 6),
        ("EVALUATION", "eval_loss", 6),
        ("EVALUATION", "eval_accuracy", 6),
        ("PHASE", "evaluate", 6),
        ("STATE", "finished", 6),
    ]
    assert [record.time for record in found] == sorted(record.time for record in found)


def test_a_step_has_the_values_of_its_row_and_no_others() -> None:
    """Blank is absent, NaN is a value."""
    first, second, third = steps(list(records(run_with(ROWS), TIMELINE)))
    assert (first.get(Value.LOSS), first.get(Value.GRAD_NORM), first.get(Value.EPOCH)) == (2.0, 1.0, 0.5)
    assert (first.values[Value.LEARNING_RATES], first.values[FIRST_LEARNING_RATE]) == (1.0, 0.1)
    loss = second.get(Value.LOSS)
    assert loss is not None
    assert math.isnan(loss)
    assert third.get(Value.GRAD_NORM) is None
    assert third.values[Value.LEARNING_RATES] == 0.0


def test_step_times_are_scaled_to_the_pace_and_throughput_is_kept() -> None:
    """The typical step takes the pace; one that took twice as long takes twice the pace."""
    found = steps(list(records(run_with(ROWS), Timeline(0.5, 1.0))))
    assert [record.get(Value.STEP_SECONDS) for record in found] == [0.5, 0.25, 1.0]
    assert found[0].get(Value.TOKENS) == 50.0


def test_the_length_of_the_log_is_the_planned_length_unless_the_configuration_has_one() -> None:
    """So a short run has a short warm-up; evaluations do not count."""
    run = run_with(ROWS)
    found = description(run, MonitorConfig())["config"]["statistics"]
    assert found["total_steps"] == 3
    planned = MonitorConfig.model_validate({"statistics": {"total_steps": 7}})
    assert description(run, planned)["config"]["statistics"]["total_steps"] == 7


def test_sinks_are_left_out() -> None:
    """A replay writes no files into the folders of real runs."""
    config = MonitorConfig.model_validate({"sinks": {"csv": {"folder": "/nowhere"}}})
    assert "csv" not in description(run_with(ROWS), config)["config"]["sinks"]


def test_the_scrapes_see_what_the_endpoint_would_show(make_rules: MakeRules) -> None:
    """The last scrape's samples are those that the aggregator renders after the same records."""
    run = run_of([1.0 + (number % 7) / 10 for number in range(60)] + [9.0, math.nan])
    found = scraped(run, make_rules, "train_.+")
    aggregator = Aggregator(StepRing.private(description(run, MonitorConfig()), 1).reader(), version())
    aggregator.take(records(run, TIMELINE), {metric.name for metric in CATALOGUE})
    expected = {
        sorted_labels({"__name__": sample.name, **TARGET, **sample.labels}): repr(sample.value)
        for family in text_string_to_metric_families(aggregator.render().decode())
        for sample in family.samples
        if sample.name.startswith("train_")
    }
    seen = {series.labels: repr(series.stretches[-1].values[-1]) for series in found.series}
    assert seen == expected


def test_series_are_there_from_before_the_first_row_to_the_end(make_rules: MakeRules) -> None:
    """Counters start at zero, so that an increase can be seen; the last scrape sees the run finished."""
    found = scraped(run_of([1.0] * 20), make_rules, "train_steps_total|train_loss|train_run_state|up")
    counter = one(found, "train_steps_total")
    assert [stretch.start for stretch in counter.stretches] == [0]
    assert list(counter.stretches[0].values)[:7] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]
    assert counter.stretches[0].end == one(found, "up").stretches[0].end == found.scrapes
    assert one(found, "train_loss").stretches[0].start == 5
    assert one(found, "train_run_state", state="finished").stretches[0].values[-1] == 1.0
    assert one(found, "train_run_state", state="running").stretches[0].values[-2:].tolist() == [1.0, 0.0]


def test_series_that_come_and_go_are_there_while_the_endpoint_shows_them(make_rules: MakeRules) -> None:
    """A limit of one phase ends where that of the next begins."""
    config = MonitorConfig.model_validate(
        {
            "phases": [{"name": "warm", "until_step": 9}, {"name": "main"}],
            "limits": [
                {"signal": "loss", "value": 9.0, "severity": "warning", "phase": "warm"},
                {"signal": "loss", "value": 5.0, "severity": "critical", "phase": "main"},
            ],
        }
    )
    found = scraped(run_of([1.0] * 20), make_rules, "train_limit|train_steps_total", config)
    spans = {
        severity: [
            (stretch.start, stretch.end, set(stretch.values))
            for stretch in one(found, "train_limit", severity=severity).stretches
        ]
        for severity in ("warning", "critical")
    }
    first_of_main = 5 + 10
    assert spans == {
        "warning": [(0, first_of_main, {9.0})],
        "critical": [(first_of_main, found.scrapes, {5.0})],
    }


def values_before_evaluations(found: Scraped, name: str, interval: float) -> list[float]:
    """Return what the evaluations of a group with this interval read of a gauge while the run is there."""
    series = one(found, name)
    indexes = [
        TIMELINE.scrapes.count_until(TIMELINE.evaluations(interval).at(number)) - 1
        for number in range(found.scrapes // int(interval))
    ]
    by_index = {
        index: value
        for stretch in series.stretches
        for index, value in enumerate(stretch.values, stretch.start)
    }
    return [by_index[index] for index in indexes if index in by_index]


@pytest.mark.parametrize(
    ("expression", "spared"),
    [
        ("train_loss_slope > 0", True),
        ("max_over_time(train_loss_slope[1m]) > 0", False),
        ("train_loss_slope offset 7s > 0", False),
        ("max_over_time((train_loss_slope > 0)[1m:1s])", False),
        ("train_loss_slope @ 1000000007 > 0", False),
    ],
)
def test_what_slow_rules_read_is_worked_out_when_they_read_it(
    make_rules: MakeRules, expression: str, spared: bool
) -> None:
    """A slope that is looked at every 5 s costs a fifth, unless a rule looks at other moments, too."""
    run = run_of([1.0 + (number * number % 17) / 10 for number in range(60)])
    always = scrape_run(run, MonitorConfig(), demand_for(make_rules, "train_loss_slope > 0"), TIMELINE, ())
    asked = demand_for(make_rules, expression, "5s")
    sometimes = scrape_run(run, MonitorConfig(), asked, TIMELINE, ())
    expected = values_before_evaluations(always, "train_loss_slope", 5.0)
    assert len(set(expected)) > 8
    assert values_before_evaluations(sometimes, "train_loss_slope", 5.0) == expected
    different = set(one(sometimes, "train_loss_slope").stretches[0].values)
    assert (len(different) < 20) is spared


@pytest.mark.parametrize(("pace", "scrape"), [(0.25, 1.0), (1.0, 1.0), (60.0, 1.0), (1.0, 15.0), (0.1, 0.3)])
def test_time_leads_back_to_the_row(pace: float, scrape: float) -> None:
    """The row that is found at a scrape, and at the evaluation after it, is the newest one that it saw."""
    timeline = Timeline(pace, scrape)
    rows = 50
    for index in range(timeline.scrapes.count_until(timeline.end_of(rows) * 1000)):
        moment = timeline.scrapes.at(index)
        seen = [row for row in range(rows) if timeline.time_of(row) * 1000 <= moment]
        assert timeline.row_at(moment, rows) == (seen[-1] if seen else 0)
        evaluation = timeline.evaluations(scrape).at(index)
        assert moment < evaluation < timeline.scrapes.at(index + 1)
