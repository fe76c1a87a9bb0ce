"""The gauntlet's faults do what they say, once; its verdict counts right; and a run gets through."""

from __future__ import annotations

import dataclasses
import itertools
import math
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gauntlet import verdict
from benchmarks.gauntlet.evidence import Evidence
from benchmarks.gauntlet.faults import FAULTS, Fault, Place
from benchmarks.gauntlet.healthy import SHAPES
from benchmarks.gauntlet.launcher import MOST_RESTARTS, Launcher
from benchmarks.gauntlet.plan import plan
from benchmarks.gauntlet.recipes import Recipe, Schedule, Training, prepare
from benchmarks.gauntlet.spec import Diary, Spec, count_step
from benchmarks.gauntlet.stack import run_wave, running_stack
from benchmarks.gauntlet.striker import Striker
from benchmarks.gauntlet.trainer import train
from benchmarks.gauntlet.twins import train_twins
from benchmarks.gauntlet.verdict import End, Faulted, Outcome

SMALL = Recipe(layers=1, heads=1, width=8, context=8, batch=4, warmup=5, evaluate_every=10)


@pytest.fixture
def training() -> Training:
    """A run that is ready for its first step."""
    return prepare(SMALL, steps=100, seed=1, rank=0)


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    """The diary of a new run."""
    return Diary(tmp_path / "run")


def striker(name: str, at: int, training: Training, diary: Diary, **changes: Any) -> Striker:
    """Return what lets a fault, on rank 0, strike at step `at`."""
    return Striker(dataclasses.replace(FAULTS[name], rank=0, **changes), at, training, diary)


# ── the plan ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_whole_gauntlet_is_every_fault_on_three_seeds_and_twenty_healthy_shapes(tmp_path: Path) -> None:
    """Each faulted run has its own unprotected twin; the unfaulted ones are shared; each wave has a stack."""
    made = plan(tmp_path, seeds=(1, 2, 3))
    runs = [spec for wave in made.waves for spec in wave]
    faulted = [spec for spec in runs if spec.fault is not None]
    assert len(FAULTS) == 15
    assert {(spec.fault, spec.seed) for spec in faulted} == set(itertools.product(FAULTS, (1, 2, 3)))
    assert sorted(spec.run for spec in runs if spec.fault is None) == sorted(
        f"healthy-{shape.name}" for shape in SHAPES
    )
    assert len(SHAPES) == 20
    assert len({spec.home for spec in runs}) == len(made.waves) == 3
    for spec in faulted:
        alone, clean = made.unprotected[spec.run], made.unfaulted[spec.run]
        assert (alone.fault, alone.home, clean.fault, clean.home) == (spec.fault, None, None, None)
        assert alone.recipe == clean.recipe == spec.recipe
        assert alone.seed == clean.seed == spec.seed
    assert len({spec.run for spec in made.twins}) == len(made.twins) < 2 * len(faulted)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_strikes_in_the_second_half_at_a_step_of_its_seed(fault: Fault) -> None:
    """It is over before the end, and other seeds have other steps."""
    steps = [fault.step(1000, seed) for seed in range(20)]
    assert steps == [fault.step(1000, seed) for seed in range(20)]
    assert min(steps) >= 500
    assert max(steps) <= 900
    assert len(set(steps)) > 10


# ── the faults ────────────────────────────────────────────────────────────────────────────────────────────


def test_data_faults_spoil_their_positions_only_and_are_noted_once(training: Training, diary: Diary) -> None:
    """Whoever goes back and reads the positions again meets the same data, as from a file."""
    clean = prepare(SMALL, steps=100, seed=1, rank=0).batches
    striker("corrupt-shard", 3, training, diary, length=2)
    batches = [next(training.batches) for _ in range(6)]
    same = [torch.equal(one.inputs, next(clean).inputs) for one in batches]
    assert same == [True, True, False, False, True, True]
    training.batches.load_state_dict({"position": 2})
    assert torch.equal(next(training.batches).inputs, batches[2].inputs)
    assert [event["step"] for event in diary.events("fault")] == [3]


def test_another_label_map_takes_each_class_for_one_other(training: Training, diary: Diary) -> None:
    """The inputs stay, equal labels stay equal, and most are others."""
    clean = next(prepare(SMALL, steps=100, seed=1, rank=0).batches)
    striker("label-shuffle", 1, training, diary)
    spoilt = next(training.batches)
    assert torch.equal(spoilt.inputs, clean.inputs)
    assert (spoilt.targets != clean.targets).float().mean() > 0.8
    taken: dict[int, int] = {}
    for old, new in zip(clean.targets.flatten().tolist(), spoilt.targets.flatten().tolist(), strict=True):
        assert taken.setdefault(old, new) == new


def test_a_bit_flip_changes_one_weight_by_the_top_of_its_exponent(training: Training, diary: Diary) -> None:
    """All others keep their bits."""
    before = torch.cat([weight.detach().flatten().clone() for weight in training.model.parameters()])
    striker("weight-bit-flip", 5, training, diary).at("state", 5)
    after = torch.cat([weight.detach().flatten() for weight in training.model.parameters()])
    (changed,) = (before != after).nonzero().flatten().tolist()
    assert math.isclose(abs(float(after[changed])), abs(float(before[changed])) * 2.0**128, rel_tol=1e-6)


def test_state_faults_strike_at_their_place_and_step_and_not_again(training: Training, diary: Diary) -> None:
    """Neither in the same process after a rollback nor in the one that follows it."""
    one = striker("lr-explosion", 5, training, diary)
    rates = []
    moments: list[tuple[Place, int]] = [("state", 4), ("gradients", 5), ("state", 5), ("state", 6)]
    for place, step in [*moments, moments[2]]:
        one.at(place, step)
        rates.append(training.optimizer.param_groups[0]["lr"] / training.scheduler.get_last_lr()[0])
    assert rates == pytest.approx([1.0, 1.0, 100.0, 100.0, 100.0])
    striker("lr-explosion", 5, training, diary).at("state", 5)
    assert training.scheduler.base_lrs == pytest.approx([SMALL.rate * 100.0])
    assert len(diary.events("fault")) == 1


def test_a_full_disk_refuses_large_files_and_is_freed_again(
    training: Training, diary: Diary, tmp_path: Path
) -> None:
    """For its length of steps, writing a checkpoint fails with the system's error."""
    one = striker("full-disk", 1, training, diary, length=2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        one.at("state", 1)
        with pytest.raises(OSError, match="too large"):
            (tmp_path / "checkpoint").write_bytes(bytes(1 << 20))
        one.at("state", 2)
        (tmp_path / "checkpoint").write_bytes(bytes(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_leak_goes_on_in_the_process_that_follows(training: Training, diary: Diary) -> None:
    """A restart frees what was leaked and mends nothing."""
    for _ in range(2):
        one = striker("host-memory-leak", 3, training, diary)
        training.kept.clear()
        for step in range(1, 7):
            one.at("state", step)
        assert len(training.kept) == 4
    assert len(diary.events("fault")) == 1


def test_what_a_schedule_is_about_is_in_its_state(training: Training) -> None:
    """A rollback mends a rate that creeps, since the checkpoint has the schedule from before."""
    saved = training.scheduler.state_dict()
    FAULTS["lr-creep"].strike(training)
    assert training.schedule(60) > 10.0 * Schedule("cosine", 100, 5)(60)
    training.scheduler.load_state_dict(saved)
    assert training.schedule(60) == Schedule("cosine", 100, 5)(60)


# ── the verdict ───────────────────────────────────────────────────────────────────────────────────────────


def outcome(**changes: Any) -> Outcome:
    """Return a faulted run that recovered and lost 15 of 1000 steps."""
    end = End(how="finished", val_loss=2.0, reached=1000, executed=1015)
    return Outcome(**{"run": "a", "fault": "x", "seed": 1, "steps": 1000, "end": end, **changes})


def faulted(**changes: Any) -> Faulted:
    """Return it beside its twins."""
    alone = End(how="finished", val_loss=3.0, reached=1000, executed=1000)
    return Faulted(outcome=outcome(**changes), reference=2.0, unprotected=alone)


@pytest.mark.parametrize(
    ("end", "recovered", "lost"),
    [
        (End(how="finished", val_loss=2.1, reached=1000, executed=1015), True, 15),
        (End(how="finished", val_loss=1.5, reached=1000, executed=1000), True, 0),
        (End(how="finished", val_loss=2.11, reached=1000, executed=1000), False, 0),
        (End(how="finished", val_loss=None, reached=1000, executed=1000), False, 0),
        (End(how="stopped", val_loss=2.0, reached=700, executed=720), False, 320),
        (End(how="paused", reached=600, executed=650), False, 450),
    ],
)
def test_a_run_recovers_that_finishes_within_five_percent(end: End, recovered: bool, lost: int) -> None:
    """Lost are the steps taken in vain and those not taken; a pause or a stop is no recovery."""
    one = faulted(end=end)
    assert one.recovered is recovered
    assert one.lost_share == lost / 1000
    assert not one.healed_alone


def test_each_bar_that_is_missed_is_named() -> None:
    """19 of 20 recovered is enough, 2 % lost is; one intervention without a fault is too much."""
    bad = End(how="paused", reached=600, executed=600)
    good = [faulted() for _ in range(19)]
    healthy = [outcome(fault=None)]
    assert verdict.problems([*good, faulted(end=bad)], healthy) == []
    (missed,) = verdict.problems([*good[:18], faulted(end=bad)], healthy)
    assert missed == "18 of 19 faulted runs recovered"
    dear = faulted(end=End(how="finished", val_loss=2.0, reached=1000, executed=1021))
    assert verdict.problems([dear], healthy) == ["the median of the steps lost is 2.1% of a run"]
    wrong = outcome(fault=None, false_interventions=("rollback for TrainLossUnstable",))
    assert verdict.problems(good, [wrong]) == ["1 interventions on runs without a fault"]
    assert verdict.problems([faulted(false_interventions=("pause for X",))], []) != []
    unfinished = outcome(fault=None, end=bad, run="b")
    assert verdict.problems(good, [unfinished]) == ["healthy runs did not finish: b"]


def test_an_outcome_tells_what_came_after_the_fault_and_what_before(diary: Diary, tmp_path: Path) -> None:
    """An alert or a command from before the fault is no detection and no answer, but a false alarm."""
    folder = tmp_path / "run"
    spec = Spec(run="a", folder=folder, home=tmp_path, recipe=SMALL, steps=100, seed=1, fault="lr-creep")
    diary.note("fault", step=60)
    at = diary.events("fault")[0]["at"]
    diary.note("rollback", step=70, to=55)
    diary.finish(val_loss=2.0, step=100, stopped=False)
    row = {"alertname": "A", "state": "applied"}
    evidence = Evidence(
        alerts=((at - 5, "Early (warning)"), (at + 1.5, "A (critical)"), (at + 3, "B (critical)")),
        commands=(
            {**row, "action": "reduce_lr", "created_at": at - 4, "finished_at": at - 3, "step": 50},
            {**row, "action": "rollback", "created_at": at + 2, "finished_at": at + 2.5, "step": 55},
        ),
    )
    found = verdict.outcome_of(spec, diary, evidence)
    assert (found.detected, found.detected_seconds) == ("A (critical)", 1.5)
    assert (found.answer, found.answer_seconds, found.answer_steps) == ("rollback", 2.5, 11)
    assert found.interventions == ("rollback",)
    assert found.false_interventions == ("reduce_lr for A",)
    assert found.end.how == "finished"


def test_steps_of_a_run_that_was_cut_off_are_those_of_its_last_course(diary: Diary, tmp_path: Path) -> None:
    """What a rollback or a restart took back is not reached."""
    spec = Spec(run="a", folder=tmp_path / "run", home=tmp_path, recipe=SMALL, steps=100, seed=1)
    counter = diary.counter()

    def go(steps: int) -> None:
        for _ in range(steps):
            count_step(counter)

    diary.note("start", step=0, rank=0, executed=0)
    go(50)
    diary.note("restart", why="rank 0 died", executed=50)
    diary.note("start", step=40, rank=0, executed=50)
    go(20)
    diary.note("rollback", step=60, to=45)
    go(5)
    diary.note("over", why="paused", executed=75)
    end = verdict.end_of(spec, diary)
    assert (end.how, end.reached, end.executed, end.restarts) == ("paused", 50, 75, 1)
    assert end.lost(100) == 25 + 50


# ── real processes ────────────────────────────────────────────────────────────────────────────────────────


def test_a_fault_changes_nothing_before_it_strikes(tmp_path: Path, home: Path) -> None:
    """The twins with and without a fault are one training until then, and end apart."""
    losses = []
    for name, fault in (("clean", None), ("struck", "poisoned-batch"), ("again", None)):
        folder = tmp_path / name
        train(Spec(run=name, folder=folder, recipe=SMALL, steps=30, seed=1, fault=fault))
        result = Diary(folder).result
        assert result is not None
        assert result["step"] == Diary(folder).executed == 30
        losses.append(result["val_loss"])
    assert losses[0] == losses[2]
    assert math.isnan(losses[1])


def ends(launcher: Launcher) -> Iterator[float]:
    """Look after a launcher until it is over, and yield the seconds so far."""
    begun = time.monotonic()
    while not launcher.over:
        launcher.look()
        time.sleep(0.05)
        yield time.monotonic() - begun


def test_an_unprotected_run_that_is_killed_is_over(tmp_path: Path) -> None:
    """Nothing that it could go on from is left; a protected one is started again, but not for ever."""
    spec = Spec(run="a", folder=tmp_path / "run", recipe=SMALL, steps=20, seed=1, fault="killed-rank")
    launcher = Launcher(spec)
    launcher.start()
    launcher._processes[0].send_signal(signal.SIGKILL)
    assert all(seconds < 60 for seconds in ends(launcher))
    assert verdict.end_of(spec, launcher.diary).how == "rank 0 died"
    protected = Launcher(spec.model_copy(update={"home": tmp_path, "folder": launcher.spec.folder}))
    try:
        protected.start()
        for _ in range(MOST_RESTARTS + 1):
            protected._processes[0].kill()
            protected._processes[0].wait()
            protected.look()
    finally:
        protected.kill()
    assert protected.over
    assert protected.restarts == MOST_RESTARTS


@pytest.mark.e2e
def test_a_poisoned_batch_goes_through_the_whole_stack(tmp_path: Path) -> None:
    """It is detected and rolled back by the real parts, and the run ends as well as one without it."""
    made = plan(tmp_path, faults=["poisoned-batch"], seeds=[1], shapes=0, steps=200, pace=0.1)
    (wave,) = made.waves
    found: list[Outcome] = []
    assert wave[0].home is not None
    with running_stack(wave[0].home, lambda _: None) as stack:
        run_wave(stack, wave, on_over=found.append, on_progress=lambda _: None)
    twins = train_twins(made.twins, lambda _: None)
    (one,) = found
    judged = Faulted(
        outcome=one,
        reference=twins[made.unfaulted[one.run].run].val_loss,
        unprotected=twins[made.unprotected[one.run].run],
    )
    assert one.detected == "TrainNonFinite (critical)"
    assert one.interventions == ("rollback",)
    assert one.answer == "rollback"
    assert one.answer_seconds is not None
    assert 0.0 < one.answer_seconds < 15.0
    assert judged.recovered
    assert not judged.healed_alone
    assert one.end.executed > one.end.reached == 200
