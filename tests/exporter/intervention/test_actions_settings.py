"""Commands that change how a run trains and measures: set_lr, clip_gradients, set_sampling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exporter.conftest import MonitorFactory, sample
from tests.exporter.probes.conftest import scraped
from tests.exporter.test_monitor import Loop, scrape, settle
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, StepLR

from trainswitch.errors import ActionRefused, ConfigError
from trainswitch.intervention.actions import Refusal
from trainswitch.intervention.clipping import GradientClip
from trainswitch.intervention.commands import ClipGradientsParams, Command
from trainswitch.intervention.learning_rate import LearningRateScale
from trainswitch.intervention.rate_actions import RateActions
from trainswitch.probes.gradients import GradientNorm

SETTINGS: dict[str, Any] = {"checkpoint": {"interval_steps": 10, "probation_steps": 5}}


def applied(loop: Loop, action: str, **params: Any) -> str:
    """Command, demand that it is applied, and return what was said of it."""
    loop.command(action, params=params)
    answer = loop.answered()
    assert answer.result == "applied", answer.detail
    detail: str = answer.detail
    return detail


# ── set_lr ────────────────────────────────────────────────────────────────────────────────────────────


def groups(*rates: float) -> tuple[torch.optim.SGD, RateActions, list[list[float]]]:
    """An optimizer with a group for each rate, and the rates in force in each of its steps."""
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in rates]
    optimizer = torch.optim.SGD([{"params": [w], "lr": r} for w, r in zip(weights, rates, strict=True)], lr=1)
    rate_actions = RateActions(LearningRateScale(optimizer))
    used: list[list[float]] = []
    optimizer.register_step_pre_hook(
        lambda *_: used.append([group["lr"] for group in optimizer.param_groups])
    )
    return optimizer, rate_actions, used


def test_the_largest_rate_becomes_the_value_and_the_schedule_goes_on_scaled() -> None:
    """The other groups keep their ratios, and what the scheduler does next is relative to the new rate."""
    optimizer, rates, used = groups(0.1, 0.02)
    scheduler: LRScheduler = StepLR(optimizer, step_size=2, gamma=0.5)
    rates.multiply(0.5)  # what was done before does not matter
    detail = rates.set(0.3)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    assert [pair[0] for pair in used] == pytest.approx([0.3, 0.3, 0.15, 0.15])
    assert [pair[1] for pair in used] == pytest.approx([0.06, 0.06, 0.03, 0.03])
    assert "3 times the schedule's" in detail
    assert "now 0.3, 0.06" in detail


def test_a_rate_of_zero_or_on_a_device_is_refused() -> None:
    """No factor makes zero anything, and a tensor on a device is not read; nothing is changed."""
    optimizer, rates, _ = groups(0.0)
    LambdaLR(optimizer, lambda _: 0.0)
    with pytest.raises(ActionRefused, match=r"no factor makes it 0\.1"):
        rates.check_set(0.1)
    optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
    with pytest.raises(ActionRefused, match="tensor on a device"):
        rates.set(0.1)
    with pytest.raises(ActionRefused, match="no optimizer"):
        RateActions(None).check_set(0.1)
    assert rates.factor == 1.0


def test_set_lr_outlives_a_rollback_and_comes_back_with_restore(
    home: Path, new_monitor: MonitorFactory
) -> None:
    """It is shown as the run's rate, a rollback does not undo it, and a checkpoint holds it."""
    loop = Loop(home, new_monitor, **SETTINGS)
    settle(loop)
    assert "set to 0.0025" in applied(loop, "set_lr", value=0.0025)
    applied(loop, "rollback")
    loop.train(1)
    assert sample(scrape(loop.monitor), "train_learning_rate", group="0") == pytest.approx(0.0025)
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    applied(loop, "snapshot")
    saved = loop.status().checkpoints[-1].step
    loop.monitor.close()

    again = Loop(home, new_monitor, **SETTINGS)
    again.monitor.restore(saved)
    again.train(1)
    assert sample(scrape(again.monitor), "train_learning_rate", group="0") == pytest.approx(0.0025)


def test_only_a_lower_rate_says_that_there_was_trouble(home: Path, new_monitor: MonitorFactory) -> None:
    """What was saved before the rate is lowered is suspect, as with reduce_lr; raising it says nothing."""
    loop = Loop(home, new_monitor, checkpoint={"interval_steps": 0, "probation_steps": 10_000})
    for rate, kind in ((0.02, "probation"), (0.005, "suspect")):
        applied(loop, "snapshot")
        applied(loop, "set_lr", value=rate)
        loop.monitor._channel.refresh()
        assert loop.monitor._store is not None
        assert loop.monitor._store.entries()[-1].kind == kind


# ── clip_gradients ────────────────────────────────────────────────────────────────────────────────────


class Gradients:
    """An optimizer whose gradients have a norm of choice, and the norm that its steps saw."""

    def __init__(self, *, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]
        self.optimizer = torch.optim.AdamW(self.weights, lr=1e-3, fused=fused)
        self.probe = GradientNorm(self.optimizer)
        self.optimizer.register_step_pre_hook(lambda *_: self.probe.before_step())
        self.seen: list[float] = []
        self.optimizer.register_step_pre_hook(lambda *_: self.seen.append(self.norm()))

    def norm(self) -> float:
        """Of all gradients as they are."""
        found = [weight.grad.flatten() for weight in self.weights if weight.grad is not None]
        return float(torch.linalg.vector_norm(torch.cat(found)))

    def backward(self, norm: float) -> None:
        """Give all weights gradients."""
        raw = [torch.randn_like(weight) for weight in self.weights]
        length = torch.linalg.vector_norm(torch.cat([one.flatten() for one in raw]))
        for weight, one in zip(self.weights, raw, strict=True):
            weight.grad = one * (norm / length)

    def step(self, norm: float, **_: Any) -> tuple[float | None, float | None]:
        """One step without clipping in the loop; return what was measured and the limit."""
        self.backward(norm)
        self.optimizer.step()
        measured, limit = self.probe.take()
        return (None if measured is None else float(measured)), limit


def test_gradients_are_clipped_where_the_loop_does_not() -> None:
    """The optimizer steps on the limited norm; the norm before is measured, even if none is wanted."""
    run = Gradients()
    run.probe.wanted = False
    run.step(5.0)
    run.probe.max_norm = 0.5
    for norm in (5.0, 0.25):
        measured, limit = run.step(norm)
        assert measured == pytest.approx(norm)
        assert limit == 0.5
    assert run.seen == [pytest.approx(5.0), pytest.approx(0.5, rel=1e-4), pytest.approx(0.25)]


@pytest.mark.parametrize(("own", "smaller"), [(0.2, 0.2), (2.0, 0.5)])
def test_the_smaller_of_two_limits_counts(own: float, smaller: float) -> None:
    """A loop that clips with its own limit is clipped once, by the smaller one."""
    run = Gradients()
    run.probe.max_norm = 0.5
    run.backward(5.0)
    assert float(run.probe.clip(None, own)) == pytest.approx(5.0)
    run.optimizer.step()
    assert run.seen == [pytest.approx(smaller, rel=1e-4)]
    checked = run.probe.check()
    assert checked is not None
    assert float(checked) == pytest.approx(5.0), "the step has not measured again"
    assert run.probe.take()[1] == smaller


def test_clipping_a_part_in_the_loop_does_not_hide_the_rest() -> None:
    """The limit is one for all gradients together, whatever the loop has clipped before."""
    run = Gradients()
    run.probe.max_norm = 0.5
    run.backward(5.0)
    run.probe.clip(run.weights[0], 0.1)
    run.optimizer.step()
    assert run.seen == [pytest.approx(0.5, rel=1e-4)]


def test_each_evaluation_of_a_closure_is_clipped() -> None:
    """An optimizer that evaluates its closure several times meets limited gradients each time."""
    run = Gradients()
    run.probe.max_norm = 0.5
    for norm in (5.0, 7.0, 9.0):
        run.backward(norm)
        if norm == 7.0:  # the limit of the loop's own holds for this evaluation only
            run.probe.clip(None, 0.25)
        run.probe.before_step()
        assert run.norm() == pytest.approx(0.25 if norm == 7.0 else 0.5, rel=1e-4)
    assert run.probe.take() != (None, None)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_under_a_grad_scaler_the_true_gradients_are_clipped(fused: bool, unscale: bool) -> None:
    """A fused optimizer steps on scaled gradients, the others on unscaled ones: both take the same step."""
    run, plain = Gradients(fused=fused), Gradients(fused=fused)
    run.probe.max_norm = 0.5
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run.backward(5.0)
    for weight, twin in zip(run.weights, plain.weights, strict=True):
        assert weight.grad is not None
        twin.grad = weight.grad * (0.5 / (5.0 + 1e-6))
        weight.grad *= float(scaler.scale(torch.ones(())))
    if unscale:
        scaler.unscale_(run.optimizer)
    scaler.step(run.optimizer)
    plain.optimizer.step()
    measured, _ = run.probe.take()
    assert measured is not None
    assert float(measured) == pytest.approx(5.0, rel=1e-4)
    for weight, twin in zip(run.weights, plain.weights, strict=True):
        torch.testing.assert_close(weight, twin)
        state, other = run.optimizer.state[weight], plain.optimizer.state[twin]
        torch.testing.assert_close(state["exp_avg"], other["exp_avg"])


class Told:
    """Remembers what it was told to clip to."""

    def __init__(self) -> None:
        self.limits: list[float | None] = []

    def limit(self, max_norm: float | None) -> None:
        """Remember."""
        self.limits.append(max_norm)

    def clip_obstacle(self) -> str:
        """Nothing is in the way."""
        return ""


def test_clipping_lasts_for_its_steps_and_steps_0_ends_it() -> None:
    """It is counted by steps, a new command replaces it, and a checkpoint holds what is left of it."""
    clipper = Told()
    clip = GradientClip(clipper)
    assert "for 2 steps" in clip.act(ClipGradientsParams(max_norm=1.0, steps=2))
    clip.end_step()
    assert clip.state() == {"max_norm": 1.0, "steps_left": 1}
    clip.end_step()
    assert clip.state() is None
    clip.end_step()
    assert "until that is changed" in clip.act(ClipGradientsParams(max_norm=2.0))
    clip.end_step()
    kept = clip.state()
    assert "not clipped by command any more" in clip.act(ClipGradientsParams(max_norm=9.0, steps=0))
    clip.restore(kept)
    assert clipper.limits == [1.0, None, 2.0, None, 2.0]
    clip.restore(None)
    assert clipper.limits[-1] is None


def test_a_commanded_clip_is_counted_survives_a_rollback_and_is_restored(
    home: Path, new_monitor: MonitorFactory
) -> None:
    """The loop's own limit of 1.0 gives way to the smaller one until its steps are over."""
    loop = Loop(home, new_monitor, **SETTINGS)
    settle(loop)
    seen: list[float] = []

    def look(*_: Any) -> None:
        parts = [p.grad.flatten() for p in loop.model.parameters() if p.grad is not None]
        seen.append(float(torch.linalg.vector_norm(torch.cat(parts))))

    loop.optimizer.register_step_pre_hook(look)
    applied(loop, "clip_gradients", max_norm=1e-6)
    clips = scraped(loop.monitor, "train_grad_clips_total") or 0.0
    applied(loop, "rollback")
    seen.clear()
    loop.train(3)
    assert max(seen) <= 1e-6 * 1.001
    assert (scraped(loop.monitor, "train_grad_clips_total") or 0.0) >= clips + 3
    applied(loop, "snapshot")
    saved = loop.status().checkpoints[-1].step
    applied(loop, "clip_gradients", max_norm=1e-7, steps=2)
    seen.clear()
    loop.train(3)
    assert [norm < 2e-7 for norm in seen] == [True, True, False]
    assert seen[-1] > 1e-5
    loop.monitor.close()

    again = Loop(home, new_monitor, **SETTINGS)
    again.monitor.restore(saved)
    assert again.monitor._clip.state() == {"max_norm": 1e-6, "steps_left": None}


def test_without_an_optimizer_clipping_is_refused(new_monitor: MonitorFactory) -> None:
    """There is nothing to clip, and the answer says what to attach."""
    monitor = new_monitor(model=torch.nn.Linear(2, 2))
    with pytest.raises(ActionRefused, match="no optimizer"):
        monitor._clip.check(ClipGradientsParams(max_norm=1.0))


# ── set_sampling ──────────────────────────────────────────────────────────────────────────────────────


def test_sampling_changes_by_command(home: Path, new_monitor: MonitorFactory) -> None:
    """A signal that was not measured is, from the step after the next."""
    loop = Loop(home, new_monitor, sampling={"weights": 0})
    loop.train(3)
    assert scraped(loop.monitor, "train_layer_weight_norm", layer="0") is None
    assert "weights every 1" in applied(loop, "set_sampling", weights=1)
    loop.train(2)
    assert not math.isnan(scraped(loop.monitor, "train_layer_weight_norm", layer="0") or math.nan)


def test_sampling_without_effect_is_refused(new_monitor: MonitorFactory) -> None:
    """A signal of a model that is not attached is refused with the way out, and nothing is changed."""
    monitor = new_monitor()
    command = Command(
        id="c", seq=1, action="set_sampling", params={"weights": 1}, issued_at=0.0, expires_at=0.0
    )
    with pytest.raises(ConfigError, match="no effect without model") as caught:
        monitor._interventions.prepare(command, {})
    assert Refusal.of(caught.value).result == "refused"


def test_a_step_that_is_not_recorded_counts_for_clipping(home: Path, new_monitor: MonitorFactory) -> None:
    """Otherwise ranks would end it at different steps, and their weights would differ from there on."""
    loop = Loop(home, new_monitor)
    applied(loop, "clip_gradients", max_norm=1e-6, steps=2)
    for _ in range(2):
        loop.monitor.micro_step("no number")
        loop.monitor.step()
    assert loop.monitor._clip.max_norm is None
