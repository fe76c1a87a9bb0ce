"""The course of a loss carried on: a pure function."""

from __future__ import annotations

import math

import pytest

from trainswitch_controller.outcome.forecast import forecast


def test_a_power_law_is_carried_on() -> None:
    """A loss that falls as a power of the step is forecast exactly."""
    steps = [100.0 + 10 * n for n in range(60)]
    found = forecast(steps, [4.0 * step**-0.2 for step in steps], 2000.0)
    assert found == pytest.approx(4.0 * 2000.0**-0.2)


def test_spikes_and_gaps_do_not_bend_it() -> None:
    """A tenth of the points spiked, and some not finite, move the forecast by little."""
    steps = [100.0 + 10 * n for n in range(60)]
    losses = [4.0 * step**-0.2 for step in steps]
    losses[3::10] = [50.0] * len(losses[3::10])
    losses[5::10] = [math.nan] * len(losses[5::10])
    assert forecast(steps, losses, 800.0) == pytest.approx(4.0 * 800.0**-0.2, rel=0.01)


def test_losses_that_are_not_positive_are_carried_on_as_a_line() -> None:
    """Such as those of a reward or a log-likelihood."""
    steps = [float(step) for step in range(1, 101)]
    assert forecast(steps, [1.0 - step / 50 for step in steps], 120.0) == pytest.approx(-1.4)


def test_a_run_without_a_course_has_no_forecast() -> None:
    """Too few points, or a step before the first."""
    assert forecast([1.0] * 50, [2.0] * 50, 10.0) is None
    assert forecast([float(n) for n in range(1, 15)], [2.0] * 14, 20.0) is None
    assert forecast([float(n) for n in range(1, 40)], [2.0] * 39, 0.0) is None
