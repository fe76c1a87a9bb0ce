"""From runs to limits, with replays that are played by hand: what is tried, chosen, verified and written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainswitch.config import MonitorConfig, load_config
from trainswitch_controller.errors import TuneError
from trainswitch_controller.replay import (
    Episode,
    RecordedRun,
    ReplayedRun,
    ReplayResult,
    Row,
    Trace,
    load_rules,
)
from trainswitch_controller.tune import Budget, Proposal, Trouble, relevant_rules, tune, yaml_of
from trainswitch_controller.tune.judging import Judge, Slot
from trainswitch_controller.tune.levels import SIGNALS, places
from trainswitch_controller.tune.phases import phases_of_rows, proposed_phases, steps_of

COMMITTED = Path(__file__).parents[3] / "prometheus" / "rules"
ALONE_AND_LEVELS = 1 + 4
"""Replays before the first one of a choice: highest value, and three levels above it."""
ALERTS = {"loss": "TrainLossUnstable", "grad_norm": "TrainGradientExplosion", "loss_ratio": "TrainLossSpike"}


def run_of(losses: Sequence[float | None], name: str = "a", norms: Sequence[float] = ()) -> RecordedRun:
    """Return a run with these losses and gradient norms."""
    norms = [*norms, *[1.0] * (len(losses) - len(norms))]
    rows = (
        Row(step=n, loss=loss, grad_norm=norm)
        for n, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    )
    return RecordedRun(name, Path(f"{name}.csv"), tuple(rows))


class Player:
    """Fires as the simplest of rules would: an episode for each stretch of rows above a limit.

    One row above any limit warns; three above a critical one are critical. The real rules are played in the
    test of the command.
    """

    def __init__(self, runs: Sequence[RecordedRun], also: Sequence[Episode] = ()) -> None:
        self.configs: list[MonitorConfig] = []
        self._runs = runs
        self._also = also

    def __call__(self, config: MonitorConfig, traces: Sequence[str] = ()) -> ReplayResult:
        """Play the runs."""
        self.configs.append(config)
        runs = (ReplayedRun(run=run, episodes=tuple(self._episodes(run, config))) for run in self._runs)
        return ReplayResult(runs=tuple(runs), pace=1.0)

    def _episodes(self, run: RecordedRun, config: MonitorConfig) -> list[Episode]:
        found = [episode for episode in self._also if episode.run == run.id]
        for limit in config.limits:
            values = [row.loss if limit.signal == "loss" else row.grad_norm for row in run.rows]
            above = [
                value is not None and value > limit.value and phase == limit.phase
                for value, phase in zip(values, phases_of_rows(run, config), strict=True)
            ]
            for start in range(len(above)):
                if above[start] and not (start and above[start - 1]):
                    end = next((row for row in range(start, len(above)) if not above[row]), len(above)) - 1
                    found.append(episode(ALERTS[limit.signal], "warning", start, end, run.id))
                    if limit.severity == "critical" and end - start >= 2:
                        found.append(episode(ALERTS[limit.signal], "critical", start, end, run.id))
        return found


def episode(alert: str, severity: str, start: int, end: int, run: str = "a") -> Episode:
    """Return an episode at a pace of 1 s."""
    return Episode(
        run=run,
        alert=alert,
        severity=severity,
        start_row=start,
        end_row=end,
        start=float(start),
        end=float(end),
    )


def proposed(player: Player, runs: Sequence[RecordedRun], **options: Any) -> Proposal:
    """Return the proposal for runs."""
    given: dict[str, Any] = {
        "alerts": {signal: {ALERTS[signal]} for signal in ("loss", "grad_norm")},
        "config": MonitorConfig(),
        "labels": {},
        "budget": Budget(),
        **options,
    }
    return tune(runs, player, **given)


def limits(proposal: Proposal) -> set[tuple[str, str, str | None, float]]:
    """Return what matters of the limits."""
    return {(one.signal, one.severity, one.phase, one.value) for one in proposal.config.limits}


STEADY = [2.0 + number % 5 / 10 for number in range(100)]


def test_a_limit_lies_above_what_is_healthy_in_its_phase() -> None:
    """Of runs that are all healthy, each phase's limit is half the way from median to highest above that."""
    runs = [run_of([9.0, 7.0, 5.0, *STEADY[3:]], norms=[6.0])]
    found = proposed(Player(runs), runs)
    assert [(phase.name, phase.until_step) for phase in found.config.phases] == [
        ("warmup", 19),
        ("main", None),
    ]
    assert limits(found) == {
        ("loss", "critical", "warmup", 12.4),
        ("loss", "critical", "main", 2.5),
        ("grad_norm", "critical", "warmup", 8.5),
        ("grad_norm", "critical", "main", 1.5),
    }
    assert found.total["critical"].false_alarms == found.total["warning"].false_alarms == 0


def test_rows_of_a_trouble_say_nothing_about_health() -> None:
    """A limit is worked out from the others, and meets the trouble."""
    losses = [*STEADY[:60], *[50.0] * 5, *STEADY[65:]]
    runs = [run_of(losses)]
    trouble = Trouble("a", 60, 64, "spike")
    found = proposed(Player(runs), runs, labels={"a": (trouble,)})
    assert ("loss", "critical", "main", 2.5) in limits(found)
    assert found.alone["critical"].caught == frozenset()
    assert found.total["critical"].caught == {trouble}


def test_what_meets_more_may_cost_what_the_budget_allows() -> None:
    """A healthy spike lies above the trouble: the tight limit is worth its false alarm, if allowed."""
    healthy = run_of([*STEADY * 30, *[9.0], *STEADY], "healthy")
    ill = run_of([*STEADY[:60], *[5.0] * 5, *STEADY[65:]], "ill")
    labels = {"ill": (Trouble("ill", 60, 64),), "healthy": ()}
    runs = [healthy, ill]
    generous = proposed(Player(runs), runs, labels=labels, budget=Budget(100.0, 100.0))
    assert len(generous.total["critical"].caught) == 1
    assert (generous.total["warning"].false_alarms, generous.allowed["warning"]) == (1, 3)
    strict = proposed(Player(runs), runs, labels=labels, budget=Budget(0.0, 0.0))
    assert len(strict.total["critical"].caught) == 0
    assert strict.total["warning"].false_alarms == 0


def test_what_the_rules_have_alone_is_not_the_limits_fault() -> None:
    """An episode that is there without any limit costs nothing."""
    runs = [run_of(STEADY)]
    known = [episode(ALERTS["loss"], "critical", 30, 40)]
    found = proposed(Player(runs, known), runs)
    assert found.total["critical"].false_alarms == 0


def test_what_a_signal_still_remembers_is_no_false_alarm_and_no_success() -> None:
    """A spike in the trend window keeps a loss_ratio up long after it: that is not held against a limit."""
    runs = [run_of(STEADY * 4)]
    config = MonitorConfig.model_validate({"statistics": {"trend_window_steps": 50}})
    alone = Player(runs)(config)
    judge = Judge(alone, config, {"a": (Trouble("a", 100, 101),)}, {"loss_ratio": {"TrainLossSpike"}})
    slot = Slot("loss_ratio", "warning", None)
    for start, false_alarms, caught in ((103, 0, 1), (140, 0, 0), (170, 1, 0)):
        result = Player(runs, [episode("TrainLossSpike", "warning", start, 180)])(config)
        found = judge.measure(result, slot)
        assert (found.false_alarms, len(found.caught)) == (false_alarms, caught)


def test_a_choice_that_costs_more_than_promised_is_loosened() -> None:
    """Limits that keep within the budget one by one are replayed together, and give way until they hold."""

    class Contrary(Player):
        """Has a false alarm of a tight limit only in the replays of what was chosen."""

        def _episodes(self, run: RecordedRun, config: MonitorConfig) -> list[Episode]:
            tight = any(
                (limit.signal, limit.phase, limit.severity) == ("loss", "main", "critical")
                and limit.value < 3.0
                for limit in config.limits
            )
            false_alarm = [episode(ALERTS["loss"], "critical", 70, 75)]
            chosen = len(self.configs) > ALONE_AND_LEVELS
            return [*super()._episodes(run, config), *(false_alarm if tight and chosen else ())]

    runs = [run_of(STEADY)]
    found = proposed(Contrary(runs), runs)
    assert {
        (one.slot.signal, one.slot.severity, one.value)
        for one in found.candidates
        if one.chosen and one.slot.phase == "main"
    } == {
        ("loss", "critical", 3.0),
        ("loss", "warning", 2.5),
        ("grad_norm", "critical", 1.5),
        ("grad_norm", "warning", 1.5),
    }
    assert found.total["critical"].false_alarms == 0


def test_the_written_configuration_is_what_was_replayed(tmp_path: Path) -> None:
    """It loads, keeps what was given, and each limit has its reason and the runs it rests on."""
    runs = [run_of(STEADY, f"run-{number}") for number in range(40)]
    player = Player(runs)
    given = MonitorConfig.model_validate({"sampling": {"weights": 500}, "phases": [{"name": "all"}]})
    found = proposed(player, runs, config=given)
    path = tmp_path / "limits.yml"
    path.write_text(yaml_of(found))
    loaded = load_config(path)
    assert loaded.sampling.weights == 500
    assert [phase.name for phase in loaded.phases] == ["all"]
    assert [one.model_copy(update={"reason": ""}) for one in loaded.limits] == list(player.configs[-1].limits)
    assert loaded.limits[0].reason.startswith("0 false alarms in 4000 steps of 40 runs: run-0, run-1, ")
    assert loaded.limits[0].reason.endswith(" more")
    assert set(yaml.safe_load(path.read_text())) == {"sampling", "phases", "limits"}
    comment = " ".join(line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#"))
    assert all(run.id in comment for run in runs)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"config": MonitorConfig.model_validate({"limits": [{"signal": "loss", "value": 5.0}]})},
            "has a limit of loss already (5)",
        ),
        ({"alerts": {"loss_ratio": {"TrainLossSpike"}}}, "fewer than 20 healthy values of loss_ratio"),
    ],
)
def test_what_cannot_be_tuned_is_refused(options: dict[str, Any], sentence: str) -> None:
    """One sentence says why."""
    runs = [run_of(STEADY)]
    with pytest.raises(TuneError) as error:
        proposed(Player(runs), runs, **options)
    assert sentence in str(error.value)


def test_nothing_within_the_budget_is_an_error() -> None:
    """If whatever is tried costs too much, the sentence says what to do."""

    class Hopeless(Player):
        """Fires falsely with any limit."""

        def _episodes(self, run: RecordedRun, config: MonitorConfig) -> list[Episode]:
            return [episode(ALERTS[limit.signal], "warning", 70, 75) for limit in config.limits]

    runs = [run_of(STEADY)]
    with pytest.raises(TuneError, match="no limit keeps within the budget: raise --budget"):
        proposed(Hopeless(runs), runs, alerts={"loss": {ALERTS["loss"]}})


def test_runs_that_differ_in_length_have_no_common_warm_up() -> None:
    """A warm-up that is more than half of another run is none."""
    long, short = run_of(STEADY * 100), run_of(STEADY[:40], "b")
    assert proposed_phases([long, short], MonitorConfig()) == ()
    assert [phase.name for phase in proposed_phases([long], MonitorConfig())] == ["warmup", "main"]


def test_steps_are_counted_where_the_log_has_none() -> None:
    """An evaluation belongs to the step before it."""
    rows = (
        Row(loss=1.0),
        Row(loss=1.0),
        Row(evaluations={"eval_loss": 1.0}),
        Row(step=9, loss=1.0),
        Row(loss=1.0),
    )
    assert steps_of(RecordedRun("a", Path("a"), rows)) == [1, 2, 2, 9, 10]


def test_a_loss_ratio_is_taken_after_the_warm_up_and_away_from_troubles() -> None:
    """The trend window remembers a trouble for as long as it is."""
    config = MonitorConfig.model_validate({"statistics": {"trend_window_steps": 8}})
    rows = tuple(range(100))
    traces = {
        "train_loss_window{max}": Trace(
            rows, tuple(9.0 if 50 <= n < 70 else 7.0 if n < 20 else 3.0 for n in rows)
        ),
        "train_loss_window{median}": Trace(rows, (2.0,) * 100),
        "train_baseline_ready": Trace(rows, tuple(float(n >= 20) for n in rows)),
    }
    run = ReplayedRun(run=run_of(STEADY), episodes=(), traces=traces)
    (place,) = places([run], config, {"a": (Trouble("a", 52, 57),)}, ["loss_ratio"])
    assert (place.highest, place.median) == (1.5, 1.5)


def test_the_committed_rules_say_which_alerts_a_limit_can_fire() -> None:
    """Found by following the expressions; what only silences them is kept and not judged."""
    rules, alerts = relevant_rules(load_rules([COMMITTED]), SIGNALS)
    assert alerts == {signal: {alert} for signal, alert in ALERTS.items()}
    names = {rule.name for rule in rules if rule.is_alert}
    assert "TrainNonFinite" in names
    assert "TrainHung" not in names


def test_rules_that_read_no_limit_are_refused(tmp_path: Path) -> None:
    """A limit that nobody reads would have no effect."""
    path = tmp_path / "mine.yml"
    path.write_text('groups:\n  - name: a\n    rules:\n      - {alert: A, expr: "train_loss > 5"}\n')
    with pytest.raises(TuneError, match="no alert of these rules reads train_limit"):
        relevant_rules(load_rules([path]), ["loss"])
