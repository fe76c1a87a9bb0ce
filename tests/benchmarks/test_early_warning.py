"""The early-warning benchmark finds breaks and leads where they are, and trains what it says."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import pytest
from benchmarks.early_warning import training
from benchmarks.early_warning.breaks import HELD_FOR, loss_break
from benchmarks.early_warning.schedules import RECIPES, SCHEDULES, STEPS
from benchmarks.early_warning.verdict import Outcome, false_alarms, judge, needed

from trainswitch_controller.replay import Episode, RecordedRun, ReplayedRun, Row


def learning(rows: int = 300, seed: int = 1) -> list[float]:
    """Return losses that fall from 5 to about 2, with noise."""
    numbers = random.Random(seed)
    return [2.0 + 3.0 * math.exp(-row / 40) + numbers.gauss(0.0, 0.1) for row in range(rows)]


def test_a_break_is_where_half_of_what_was_learned_begins_to_be_lost() -> None:
    """A loss that climbs by 0.02 a row from row 300 on is half of the way back after 75 rows."""
    losses = learning() + [2.0 + 0.02 * row for row in range(200)]
    found = loss_break(losses)
    assert found is not None
    assert 370 <= found <= 380


def test_a_healthy_run_a_spike_and_a_plateau_are_no_breaks() -> None:
    """Neither noise nor a loss that stays too high, nor any number of rows that heal within fifty."""
    assert loss_break(learning()) is None
    assert loss_break(learning() + [3.0] * 200) is None
    spike = [9.0] * (HELD_FOR - 10)
    assert loss_break(learning() + spike + learning()[200:]) is None
    assert loss_break([]) is None
    assert loss_break([1.0] * 4) is None


def test_losses_that_are_no_numbers_are_a_break() -> None:
    """From the third NaN on the median of five is infinite."""
    assert loss_break(learning() + [math.nan] * 100) == 302


def episode(alert: str, start_row: int, severity: str = "warning") -> Episode:
    """Return an episode that lasts ten rows."""
    return Episode(
        run="a",
        alert=alert,
        severity=severity,
        start_row=start_row,
        end_row=start_row + 10,
        start=float(start_row),
        end=float(start_row + 10),
    )


def replayed(*episodes: Episode) -> ReplayedRun:
    """Return a run whose loss breaks at about row 375, and what fired in it."""
    losses = learning() + [2.0 + 0.02 * row for row in range(200)]
    run = RecordedRun("a", Path("a.csv"), tuple(Row(step=row, loss=loss) for row, loss in enumerate(losses)))
    return ReplayedRun(run=run, episodes=episodes)


def test_only_what_warns_after_the_rate_began_to_creep_counts() -> None:
    """An alarm from before is a false one, and information is no warning."""
    found = replayed(
        episode("TrainGradientClimbing", 100),
        episode("TrainLossPlateau", 300, "info"),
        episode("TrainLossShifted", 320),
        episode("TrainGradientClimbing", 330),
    )
    outcome = judge(found, creep_from=200)
    assert outcome.broke is not None
    assert outcome.first is not None
    assert outcome.first.alert == "TrainLossShifted"
    assert outcome.lead == outcome.broke - 320
    assert outcome.climbing is not None
    assert outcome.climbing.start_row == 330
    assert outcome.is_early
    assert [one.start_row for one in false_alarms(found, before=200)] == [100]
    assert [one.start_row for one in false_alarms(found)] == [100, 320, 330]


def test_a_warning_that_comes_late_or_not_at_all_is_not_early() -> None:
    """The bar needs thirty rows between the warning and the break."""
    broke = judge(replayed(), creep_from=200).broke
    assert broke is not None
    for start_row, early in ((broke - 30, True), (broke - 29, False), (broke + 5, False)):
        assert judge(replayed(episode("TrainLossUnstable", start_row, "critical")), 200).is_early is early
    silent = judge(replayed(), 200)
    assert (silent.lead, silent.is_early) == (None, False)
    assert not Outcome("a", None, episode("TrainLossSpike", 300), None).is_early


def test_four_of_five_are_needed() -> None:
    """Of other numbers of seeds, as large a share, rounded up."""
    assert [needed(seeds) for seeds in (1, 2, 5, 10)] == [1, 2, 4, 8]


@pytest.mark.parametrize("optimizer", RECIPES)
def test_a_creeping_rate_doubles_and_the_healthy_ones_decay(optimizer: str) -> None:
    """The creeping rate grows without end after its warm-up, the others end at a tenth."""
    recipe = RECIPES[optimizer]
    creep = SCHEDULES["creep"](recipe)
    assert creep(100) == creep(recipe.creep_from) == 1.0
    assert creep(recipe.creep_from + 2 * recipe.doubling) == pytest.approx(4.0)
    for name, warmup in (("cosine", 50), ("warmup", 400)):
        factor = SCHEDULES[name](recipe)
        assert factor(0) == pytest.approx(1.0 / warmup)
        assert factor(warmup) == pytest.approx(1.0)
        assert factor(STEPS) == pytest.approx(0.1)


def test_a_run_is_really_trained_and_logged_by_the_product(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row a step, with loss, the norm before clipping and the rate; the loss falls."""
    monkeypatch.setattr(training, "STEPS", 60)
    log = training.train("adamw", "cosine", 1, home)
    with log.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [int(row["step"]) for row in rows] == list(range(1, 61))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"]) - 1.0
    assert all(float(row["grad_norm"]) > 0.0 for row in rows)
    assert max(float(row["grad_norm"]) for row in rows) > training.MAX_NORM
    assert float(rows[49]["learning_rate"]) == pytest.approx(RECIPES["adamw"].rate)
