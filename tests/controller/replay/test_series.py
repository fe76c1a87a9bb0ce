"""Series on a grid, and their way into a real Prometheus and back."""

from __future__ import annotations

import math
from array import array

import pytest

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.client import PrometheusClient
from trainswitch_controller.replay.remote_write import Encoder
from trainswitch_controller.replay.series import LabelsClash, Series, relabelled, sorted_labels
from trainswitch_controller.replay.timeline import Grid, Timeline

GRID = Timeline(1.0, 1.0).scrapes


def series_of(values: dict[int, float], **labels: str) -> Series:
    """Return a series with values at some moments."""
    series = Series(sorted_labels(labels))
    for index, value in values.items():
        series.add(index, value)
    return series


def values_of(series: Series) -> dict[int, float]:
    """Return the value of each moment."""
    return {
        index: value
        for stretch in series.stretches
        for index, value in enumerate(stretch.values, stretch.start)
    }


def test_a_gap_begins_a_new_stretch() -> None:
    """One by one or many at once, values that follow each other are one stretch."""
    series = series_of({3: 1.0, 4: 2.0, 7: 3.0}, run="a")
    series.extend(8, array("d", [4.0]))
    series.extend(10, array("d", [5.0]))
    assert [(one.start, list(one.values)) for one in series.stretches] == [
        (3, [1.0, 2.0]),
        (7, [3.0, 4.0]),
        (10, [5.0]),
    ]


def test_results_that_take_turns_become_one_series() -> None:
    """What differs only in labels that the rule overwrites is one record, without an end in between."""
    first = series_of({0: 1.0, 1: 1.0, 4: 1.0}, run="a", window="5s")
    second = series_of({2: 2.0, 3: 2.0}, run="a")
    (joined,) = relabelled([first, second], lambda labels: {"run": labels["run"], "window": "1m"})
    assert joined.labels == (("run", "a"), ("window", "1m"))
    assert len(joined.stretches) == 1
    assert values_of(joined) == {0: 1.0, 1: 1.0, 2: 2.0, 3: 2.0, 4: 1.0}


def test_results_with_the_same_labels_at_once_are_refused() -> None:
    """Prometheus would fail such a rule as well."""
    with pytest.raises(LabelsClash, match="'run': 'a'"):
        relabelled([series_of({0: 1.0}, x="1"), series_of({0: 1.0}, x="2")], lambda _labels: {"run": "a"})


def test_prometheus_returns_what_was_written(client: PrometheusClient) -> None:
    """Every float comes back, labels of any script, and beyond 11,000 points as well."""
    values = {index: index / 7 for index in range(12_000)}
    values |= {5: math.inf, 6: -math.inf, 7: 5e-324, 8: 1.7976931348623157e308}
    written = series_of(values, __name__="roundtrip", run='a"\\\n损失')
    client.write(Encoder(GRID), [written])
    (back,) = client.query_grid("roundtrip", GRID, 12_000)
    assert dict(back.labels)["run"] == 'a"\\\n损失'
    assert values_of(back) == values


def test_a_nan_is_a_value_and_no_end(client: PrometheusClient) -> None:
    """The loss may be NaN; the series goes on."""
    client.write(Encoder(GRID), [series_of({0: math.nan, 1: 1.0}, __name__="nan_value")])
    (back,) = client.query_grid("nan_value", GRID, 2)
    assert [math.isnan(value) for value in values_of(back).values()] == [True, False]


def test_a_series_ends_where_its_stretch_does(client: PrometheusClient) -> None:
    """Without the staleness marker Prometheus would go on with the last value for five minutes."""
    written = series_of({0: 1.0, 1: 2.0, 4: 3.0}, __name__="ends")
    client.write(Encoder(GRID), [written])
    (back,) = client.query_grid("ends", GRID, 10)
    assert values_of(back) == {0: 1.0, 1: 2.0, 4: 3.0}


def test_series_of_a_slower_grid_hold_between_its_moments(client: PrometheusClient) -> None:
    """As the records of a slow group: a value holds until the group's next evaluation."""
    slow = Grid(GRID.first, GRID.step * 10)
    client.write(Encoder(slow), [series_of({0: 1.0, 1: 2.0}, __name__="slow")])
    (back,) = client.query_grid("slow", GRID, 40)
    assert values_of(back) == {index: 1.0 if index < 10 else 2.0 for index in range(20)}


def test_what_prometheus_cannot_evaluate_is_said(client: PrometheusClient) -> None:
    """Its own words are in the error."""
    client.write(Encoder(GRID), [series_of({0: 1.0}, __name__="many", x=x) for x in "ab"])
    with pytest.raises(ReplayError, match="many-to-many"):
        client.query_grid("many * on () many", GRID, 1)


def test_samples_that_prometheus_refuses_are_an_error(client: PrometheusClient) -> None:
    """Nothing is lost silently."""
    client.write(Encoder(GRID), [series_of({0: 1.0}, __name__="twice")])
    with pytest.raises(ReplayError, match="refused samples"):
        client.write(Encoder(GRID), [series_of({0: 2.0}, __name__="twice")])
