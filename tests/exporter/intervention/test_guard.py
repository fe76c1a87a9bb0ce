"""The guard: a step on gradients that are not finite leaves parameters and optimizer as they were."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.exporter.conftest import MonitorFactory
from tests.exporter.probes.conftest import scraped, small_model, train_step

import trainswitch
from trainswitch.config import MonitorConfig, load_config
from trainswitch.errors import ConfigError
from trainswitch.intervention.guard import Guard, Way, choose, open_guard
from trainswitch.intervention.guard_ranks import GuardRanks
from trainswitch.probes.gradients import GradientNorm

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, weight_decay=0.1, lr_decay=0.1),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, weight_decay=0.1, fused=True),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, weight_decay=0.1, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, weight_decay=0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, weight_decay=0.1, fused=True),
    "Adamax": lambda p: torch.optim.Adamax(p, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, weight_decay=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, weight_decay=0.1, fused=True),
    "ASGD": lambda p: torch.optim.ASGD(p, weight_decay=0.1, t0=0),
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.dim() == 2], weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, weight_decay=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, weight_decay=0.1, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, momentum=0.9, fused=True),
}
FUSED = {name: make for name, make in OPTIMIZERS.items() if "fused" in name}


def make_guard(optimizer: torch.optim.Optimizer, way: Way, lost: list[str] | None = None) -> Guard:
    """A guard of one rank that goes this way, whatever the device is."""
    return Guard(
        optimizer,
        way,
        check=GradientNorm(optimizer).check,
        ranks=GuardRanks("run", None, optimizer, asked_for=False),
        may_wait=False,
        on_lost=(lost if lost is not None else []).append,
    )


def trained(make: Make, gradients: Iterable[str], way: Way | None) -> tuple[list[Any], list[Any]]:
    """Step once on each of `gradients`, ``good`` or a number for one element; return state and skips."""
    model = small_model()
    optimizer = make(list(model.parameters()))
    guard = make_guard(optimizer, way) if way is not None else None
    skips: list[Any] = []
    for number, kind in enumerate(gradients):
        for parameter in model.parameters():
            generator = torch.Generator().manual_seed(parameter.numel())
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if kind != "good":
            last = optimizer.param_groups[0]["params"][-1].grad
            last.view(-1)[number % last.numel()] = float(kind)
        before = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        after = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True))
        if guard is not None:
            skips.append(guard.take())
    state = optimizer.state_dict()["state"]
    exact = [*(p.detach() for p in model.parameters()), *(v for s in state.values() for v in s.values())]
    return [value.tolist() if isinstance(value, torch.Tensor) else value for value in exact], skips


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_a_gradient_no_optimizer_moves_anything(name: str) -> None:
    """Bad steps, the very first too, leave weights, moments and step counts as if there had been none."""
    expected, _ = trained(OPTIMIZERS[name], ["good", "good"], None)
    guarded, skips = trained(OPTIMIZERS[name], ["nan", "good", "inf", "-inf", "good"], Way.HOST)
    assert guarded == expected
    assert skips == [1.0, None, 1.0, 1.0, None]


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_skip_by_found_inf(name: str) -> None:
    """The same where the host never learns of it, and found_inf does not outlive the step."""
    expected, _ = trained(FUSED[name], ["good", "good"], None)
    guarded, skips = trained(FUSED[name], ["nan", "good", "inf", "-inf", "good"], Way.DEVICE)
    assert guarded == expected
    assert [float(skip) for skip in skips] == [1.0, 0.0, 1.0, 1.0, 0.0]


def test_found_inf_lasts_one_step() -> None:
    """The optimizer is as it was after a step, and after the guard has left."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    guard = make_guard(optimizer, Way.DEVICE)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, math.nan)
    optimizer.step()
    assert not hasattr(optimizer, "found_inf")
    guard.detach()
    assert not guard.active
    optimizer.step()
    assert all(parameter.isnan().all() for parameter in model.parameters())


def test_a_step_that_raises_keeps_its_gradients() -> None:
    """PyTorch calls no post-hook then; the gradients are back before the next step."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = make_guard(optimizer, Way.HOST)
    given = {parameter: torch.full_like(parameter, math.nan) for parameter in model.parameters()}
    for parameter, gradient in given.items():
        parameter.grad = gradient

    def fail(*_: Any) -> None:
        raise RuntimeError("of another hook")

    failing = optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="of another hook"):
        optimizer.step()
    failing.remove()
    assert guard.take() == 1.0
    optimizer.step()
    assert guard.take() == 1.0  # they were looked at once more
    assert all(parameter.grad is gradient for parameter, gradient in given.items())
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def meta(**options: Any) -> torch.optim.Optimizer:
    """An AdamW whose parameters lie on a device that is not the CPU."""
    return torch.optim.AdamW([torch.nn.Parameter(torch.empty(2, device="meta"))], **options)


@pytest.mark.parametrize(
    ("setting", "optimizer", "enabled", "way", "said"),
    [
        ("off", meta(fused=True), None, Way.NONE, ""),
        ("auto", torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]), None, Way.HOST, ""),
        ("auto", torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], fused=True), None, Way.HOST, ""),
        ("auto", meta(fused=True), None, Way.DEVICE, ""),
        ("on", meta(fused=True), None, Way.DEVICE, ""),
        ("auto", meta(), None, Way.NONE, "construct AdamW with fused=True"),
        ("auto", meta(capturable=True), None, Way.NONE, "construct AdamW with fused=True"),
        ("on", meta(), None, Way.HOST, "waits for the device once a step"),
        ("auto", meta(), True, Way.SCALER, ""),
        ("auto", meta(), False, Way.NONE, "construct AdamW with fused=True"),
        ("auto", meta(fused=True), False, Way.DEVICE, ""),
        ("auto", torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]), None, Way.NONE, "LBFGS has no step"),
    ],
)
def test_auto_is_on_wherever_nothing_waits(
    setting: Any, optimizer: torch.optim.Optimizer, enabled: bool | None, way: Way, said: str
) -> None:
    """CPU, fused kernels and a GradScaler cost no sync; elsewhere the guard is off and says why."""
    scaler = torch.amp.GradScaler("cpu", enabled=enabled) if enabled is not None else None
    chosen, why = choose(setting, optimizer, scaler)
    assert chosen is way
    assert said in why
    assert bool(why) == bool(said)


def test_a_group_that_is_not_fused_is_never_given_found_inf() -> None:
    """PyTorch's unfused code raises when it meets found_inf; so a run's training would end."""
    optimizer = meta(fused=True)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.empty(2, device="meta"))], "fused": False})
    assert choose("auto", optimizer)[0] is Way.NONE


def test_a_fused_group_that_is_loaded_unfused_ends_the_guard_and_not_the_training() -> None:
    """load_state_dict() takes ``fused`` from the file."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    lost: list[str] = []
    guard = make_guard(optimizer, Way.DEVICE, lost)
    optimizer.load_state_dict(torch.optim.Adam(small_model().parameters(), fused=False).state_dict())
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert lost == ["a parameter group is not fused any more."]
    assert not guard.active


def test_parameters_that_move_to_a_device_end_the_guard() -> None:
    """Reading their norm would make every step wait, and nobody asked for that."""
    optimizer = torch.optim.SGD(small_model().parameters(), lr=0.1)
    lost: list[str] = []
    ranks = GuardRanks("run", None, optimizer, asked_for=False)
    guard = Guard(
        optimizer,
        Way.HOST,
        check=lambda: torch.empty((), device="meta"),
        ranks=ranks,
        may_wait=False,
        on_lost=lost.append,
    )
    optimizer.step()
    assert not guard.active
    assert len(lost) == 1
    assert "parameters have moved to meta since attach()" in lost[0]


# ── in a monitor ──────────────────────────────────────────────────────────────────────────────────────────


def poisoned_step(
    monitor: trainswitch.Monitor, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """One step whose loss is NaN."""
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum() * math.nan
    loss.backward()
    optimizer.step()
    monitor.step(loss)


def weights(model: torch.nn.Module) -> list[Any]:
    """Every weight, exactly."""
    return [parameter.detach().tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("interval", [0, 1])
def test_a_skipped_step_is_counted_and_is_trouble(
    new_monitor: MonitorFactory, fused: bool, interval: int
) -> None:
    """The weights stay, the skip is counted, and the gradients count as not finite, sampled or not."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    monitor = new_monitor(
        model=model, optimizer=optimizer, settings={"sampling": {"grad_norm": interval, "layers": 1}}
    )
    assert monitor.guarded
    train_step(monitor, model, optimizer)
    kept = weights(model)
    poisoned_step(monitor, model, optimizer)
    assert weights(model) == kept
    train_step(monitor, model, optimizer)
    assert weights(model) != kept
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 1.0
    assert scraped(monitor, "train_nonfinite_total", source="grad") == 1.0
    assert scraped(monitor, "train_nonfinite_total", source="loss") == 1.0
    assert scraped(monitor, "train_guarded") == 1.0


def test_a_guard_that_is_off_is_off(new_monitor: MonitorFactory) -> None:
    """Then a NaN goes where it goes, as without trainswitch."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = new_monitor(model=model, optimizer=optimizer, guard="off")
    poisoned_step(monitor, model, optimizer)
    assert not monitor.guarded
    assert all(parameter.isnan().any() for parameter in model.parameters())
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 0.0
    assert scraped(monitor, "train_guarded") == 0.0


@pytest.mark.parametrize("part", ["whole", "half"])
def test_clipping_first_changes_nothing(new_monitor: MonitorFactory, part: str) -> None:
    """The norm that clipping has worked out is used; where it clipped a part only, all are looked at."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = new_monitor(model=model, optimizer=optimizer)
    chosen = list(model.parameters()) if part == "whole" else list(model[0].parameters())
    kept = weights(model)
    model(torch.ones(2, 4)).sum().backward()
    bias = model[2].bias.grad
    assert isinstance(bias, torch.Tensor)
    bias[0] = math.inf
    monitor.clip_grad_norm_(1.0, chosen)
    optimizer.step()
    monitor.step(1.0)
    assert weights(model) == kept
    assert scraped(monitor, "train_nonfinite_total", source="grad") == 1.0
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 1.0


def test_clipping_of_a_part_is_recorded_as_without_the_guard(new_monitor: MonitorFactory) -> None:
    """A finite norm that the guard takes for itself does not become the step's."""
    found = []
    for setting in ("off", "on"):
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters())
        monitor = new_monitor(model=model, optimizer=optimizer, guard=setting, run=f"run-{setting}")
        model(torch.ones(2, 4)).sum().backward()
        monitor.clip_grad_norm_(1e-3, model[0].parameters())
        optimizer.step()
        monitor.step(1.0)
        found.append(scraped(monitor, "train_grad_norm"))
    assert found[0] == found[1]


def test_each_of_several_optimizer_steps_is_looked_at(new_monitor: MonitorFactory) -> None:
    """A bad one among them is skipped, the others are not, and the step counts as one that was skipped."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = new_monitor(model=model, optimizer=optimizer)
    moved = []
    for factor in (1.0, math.nan, 1.0):
        kept = weights(model)
        optimizer.zero_grad()
        (model(torch.ones(2, 4)).sum() * factor).backward()
        optimizer.step()
        moved.append(weights(model) != kept)
    monitor.step(1.0)
    assert moved == [True, False, True]
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 1.0
    assert scraped(monitor, "train_nonfinite_total", source="grad") == 1.0


def test_no_gradients_are_no_trouble(new_monitor: MonitorFactory) -> None:
    """A step without a backward pass is none of the guard's business."""
    optimizer = torch.optim.SGD(small_model().parameters(), lr=0.1)
    monitor = new_monitor(optimizer=optimizer)
    optimizer.step()
    monitor.step(1.0)
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 0.0
    assert monitor.guarded


def test_a_poisoned_micro_batch_spoils_its_whole_step(new_monitor: MonitorFactory) -> None:
    """With gradient accumulation the sum is looked at, as it is what the step would use."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = new_monitor(model=model, optimizer=optimizer)
    kept = weights(model)
    for factor in (1.0, math.nan, 1.0):
        loss = model(torch.ones(2, 4)).sum() * factor
        loss.backward()
        monitor.micro_step(loss)
    optimizer.step()
    monitor.step()
    assert weights(model) == kept
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 1.0


@pytest.mark.parametrize("positional", [True, False])
def test_a_closure_is_waited_for(new_monitor: MonitorFactory, positional: bool) -> None:
    """Gradients that a closure works out are measured and guarded after it, not those of the step before."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = new_monitor(model=model, optimizer=optimizer)

    def run(factor: float) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).sum() * factor
            loss.backward()
            return loss

        given: Any = closure
        loss = optimizer.step(given) if positional else optimizer.step(closure=given)
        monitor.step(loss)
        return loss

    assert isinstance(run(1.0), torch.Tensor)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert scraped(monitor, "train_grad_norm") == float(torch.nn.utils.get_total_norm(gradients))
    kept = weights(model)
    run(math.nan)
    assert weights(model) == kept
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 1.0
    assert scraped(monitor, "train_nonfinite_total", source="grad") == 1.0


def test_gradients_that_cannot_be_measured_end_the_guard_and_not_the_training(
    new_monitor: MonitorFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Sparse gradients have no fused norm: one line, the metric says 0, and the steps happen."""
    model = torch.nn.Embedding(10, 3, sparse=True)
    optimizer: torch.optim.Optimizer = torch.optim.SparseAdam(model.parameters())
    monitor = new_monitor(model=model, optimizer=optimizer)
    kept = weights(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([1, 2, 2])).sum().backward()
        optimizer.step()
        monitor.step(1.0)
    assert weights(model) != kept
    assert not monitor.guarded
    assert scraped(monitor, "train_guarded") == 0.0
    lines = [record.message for record in caplog.records if "guard" in record.message]
    assert len(lines) == 1
    assert lines[0].startswith("the guard is off from now on: ")
    assert "\n" not in lines[0]


# ── with a GradScaler ─────────────────────────────────────────────────────────────────────────────────────


def scaled_run(monitor: Any, model: Any, optimizer: Any, scaler: Any) -> tuple[list[Any], dict[str, Any]]:
    """Three scaled steps, the second of which overflows; returns weights and the scaler's state."""
    for factor in (1.0, math.inf, 1.0):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().sum() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if monitor is not None:
            monitor.step(loss)
    return weights(model), scaler.state_dict()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("told", [True, False])
def test_a_scaler_does_the_skipping(new_monitor: MonitorFactory, fused: bool, told: bool) -> None:
    """Weights and scale are as without a monitor, and an overflow is counted once, as the scaler's."""
    results = []
    for watched in (False, True):
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        monitor = None
        if watched:
            monitor = new_monitor(model=model, optimizer=optimizer, **({"scaler": scaler} if told else {}))
        results.append(scaled_run(monitor, model, optimizer, scaler))
    assert results[0] == results[1]
    assert monitor is not None
    assert monitor.guarded
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 0.0
    assert scraped(monitor, "train_skipped_steps_total", reason="loss_scale") == float(told)


def test_a_disabled_scaler_leaves_it_to_the_guard(new_monitor: MonitorFactory) -> None:
    """It passes everything on, so the guard looks itself."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    monitor = new_monitor(model=model, optimizer=optimizer, scaler=scaler)
    scaled_run(monitor, model, optimizer, scaler)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert scraped(monitor, "train_skipped_steps_total", reason="guard") == 1.0


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("written", ["auto", "on", "off"])
def test_yaml_may_write_on_without_quotes(tmp_path: Path, written: str) -> None:
    """YAML reads a plain ``on`` as true; the setting is what was written."""
    path = tmp_path / "monitor.yaml"
    path.write_text(f"guard: {written}\n")
    assert isinstance(yaml.safe_load(path.read_text())["guard"], bool) == (written != "auto")
    assert load_config(path).guard == written


def test_a_guard_that_cannot_be_is_refused(new_monitor: MonitorFactory) -> None:
    """``on`` needs an optimizer that has steps to skip; another word is none."""
    with pytest.raises(ConfigError, match="guard: on has no effect without an optimizer"):
        new_monitor(guard="on")
    optimizer = torch.optim.LBFGS(small_model().parameters())
    with pytest.raises(ConfigError, match="guard: on cannot hold for LBFGS"):
        new_monitor(optimizer=optimizer, guard="on")
    with pytest.raises(ConfigError, match="guard='maybe' is not known: use one of auto, on, off"):
        new_monitor(guard="maybe")
    assert not new_monitor().guarded


def test_where_the_guard_is_off_one_line_says_so(
    new_monitor: MonitorFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has to find out from damaged weights."""
    monitor = new_monitor(optimizer=meta())
    assert not monitor.guarded
    lines = [r for r in caplog.records if r.levelno == logging.WARNING and "the guard is off" in r.message]
    assert len(lines) == 1


def test_a_monitor_that_is_off_guards_nothing(home: Path) -> None:
    """``enabled: false`` leaves the training as it would be without it."""
    optimizer = torch.optim.SGD(small_model().parameters(), lr=0.1)
    monitor = trainswitch.attach(
        optimizer=optimizer, run="run", config=MonitorConfig(enabled=False), guard="on"
    )
    assert not monitor.guarded
    assert not optimizer._optimizer_step_pre_hooks


# ── on a GPU ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("setting", ["auto", "on"])
def test_a_real_device_skips_without_a_sync(new_monitor: MonitorFactory, setting: str) -> None:
    """Under sync debugging, fused AdamW is guarded, skips and is counted; unfused it waits, if asked to."""
    for fused in (True, False):
        model = small_model().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        monitor = new_monitor(model=model, optimizer=optimizer, guard=setting, run=f"run-{fused}")
        batch = torch.ones(2, 4, device="cuda")
        bad = torch.full((), math.nan, device="cuda")
        kept = weights(model)
        torch.cuda.set_sync_debug_mode("error" if fused or setting == "auto" else "default")
        try:
            (model(batch).sum() * bad).backward()
            optimizer.step()
            monitor.step(bad)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        monitor._readout.flush()
        skipped = fused or setting == "on"
        assert (weights(model) == kept) == skipped
        assert scraped(monitor, "train_skipped_steps_total", reason="guard") == float(skipped)
        assert monitor.guarded == skipped


def test_what_open_guard_chooses_is_what_it_opens() -> None:
    """The way's sentence is said, and the guard is as active as the way is."""
    said: list[str] = []
    guard = open_guard("auto", meta(), run="run", check=lambda: None, say=said.append, on_lost=lambda _: None)
    assert not guard.active
    assert len(said) == 1
