"""Model FLOPs utilisation."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainswitch.config import ThroughputConfig
from trainswitch.statistics.throughput import Utilization, transformer_flops_per_token, utilization


@pytest.mark.parametrize("seconds", [0.001, 0.1, 600.0])
def test_utilisation_is_work_over_peak(seconds: float) -> None:
    """300 TFLOPs a second on hardware of 1000 are 0.3, however long a step takes."""
    used = Utilization(1e15, per_token=6e9)
    for _ in range(1000):
        used.update(tokens=300e12 * seconds / 6e9, seconds=seconds)
    assert used.ratio() == pytest.approx(0.3)


def test_recent_steps_weigh_more() -> None:
    """Some minutes after a slow-down the ratio is that of now."""
    used = Utilization(100.0, per_step=10.0)
    for _ in range(6000):
        used.update(0.0, 0.2)
    assert used.ratio() == pytest.approx(0.5)
    for _ in range(3000):
        used.update(0.0, 0.4)
    assert used.ratio() == pytest.approx(0.25, rel=0.01)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=50))
def test_no_step_breaks_it(steps: list[tuple[float, float]]) -> None:
    """NaN, infinities, zeros and negative numbers are left out; the ratio stays a number."""
    used = Utilization(1e12, per_token=6e9)
    for tokens, seconds in steps:
        used.update(tokens, seconds)
    ratio = used.ratio()
    assert ratio is None or ratio >= 0.0


def test_gpt3_takes_a_trillion_flops_a_token() -> None:
    """6·N of 175 billion parameters, as in the paper's table."""
    assert transformer_flops_per_token(175_000_000_000) == pytest.approx(1.05e12)


def test_the_settings_decide() -> None:
    """FLOPs of a step, of a token, or the estimate; without a peak there is nothing to compare with."""
    assert utilization(ThroughputConfig(), 10) is None
    for settings, parameters, expected in (
        ({"flops_per_step": 50.0}, None, 0.5),
        ({"flops_per_token": 5.0}, None, 0.1),
        ({}, 3, 0.36),
    ):
        used = utilization(ThroughputConfig(peak_flops=100.0, **settings), parameters)
        assert used is not None
        used.update(tokens=2.0, seconds=1.0)
        assert used.ratio() == pytest.approx(expected)


def test_a_peak_without_tokens_is_said_to_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred steps without tokens are one line in the log."""
    used = Utilization(1e12, per_token=6e9)
    with caplog.at_level(logging.WARNING, logger="trainswitch"):
        for _ in range(300):
            used.update(0.0, 1.0)
    assert used.ratio() is None
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "throughput.peak_flops has no effect"
    ]
