"""What is measured of a model: right values, when they are due, and nothing in between."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.exporter.conftest import MonitorFactory
from tests.exporter.probes.conftest import layer_values, scraped, small_model, train_step

from trainswitch.errors import ConfigError
from trainswitch.monitor import Monitor

EVERY_STEP = {"layers": 1, "weights": 1, "activations": 1, "checksum": 1}


def build(new_monitor: MonitorFactory, **sampling: int) -> tuple[Monitor, Any, torch.optim.Optimizer]:
    """A monitor, its model and its optimizer; without the guard, which would measure at every step."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = {"sampling": sampling, "guard": "off"}
    monitor = new_monitor(model=model, optimizer=optimizer, settings=settings)
    return monitor, model, optimizer


def norm(*tensors: torch.Tensor | None) -> float:
    """The norm of all of them."""
    return math.sqrt(sum(float(t.detach().double().square().sum()) for t in tensors if t is not None))


def test_gradients_weights_and_updates_of_each_layer(new_monitor: MonitorFactory) -> None:
    """Norms and the update ratio are those that the plain formulas give."""
    monitor, model, optimizer = build(new_monitor, **EVERY_STEP)
    before = [p.detach().clone() for p in model.parameters()]
    train_step(monitor, model, optimizer)
    gradients = [p.grad for p in model.parameters()]
    updates = [p.detach() - old for p, old in zip(model.parameters(), before, strict=True)]
    for name, tensors, other in (
        ("train_layer_grad_norm", gradients, None),
        ("train_layer_weight_norm", before, None),
        ("train_layer_update_ratio", updates, before),
    ):
        expected = [norm(*tensors[:2]), norm(*tensors[2:])]
        if other is not None:
            expected = [expected[0] / norm(*other[:2]), expected[1] / norm(*other[2:])]
        assert layer_values(monitor, name, "0", "2") == pytest.approx(expected, rel=1e-5), name
    squares = [value**2 for value in layer_values(monitor, "train_layer_grad_norm", "0", "2") if value]
    assert scraped(monitor, "train_grad_norm_squared") == pytest.approx(sum(squares), rel=1e-6)


def test_a_skipped_update_has_ratio_zero(new_monitor: MonitorFactory) -> None:
    """What is compared are the weights, not what the optimizer meant to do."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = new_monitor(model=model, optimizer=optimizer, settings={"sampling": EVERY_STEP})
    train_step(monitor, model, optimizer)
    assert layer_values(monitor, "train_layer_update_ratio", "0", "2") == [0.0, 0.0]


def test_a_layer_of_zeros_has_no_ratio(new_monitor: MonitorFactory) -> None:
    """Nothing can be said relative to a norm of zero, so the series is absent."""
    monitor, model, optimizer = build(new_monitor, weights=1)
    torch.nn.init.zeros_(model[2].weight)
    torch.nn.init.zeros_(model[2].bias)
    train_step(monitor, model, optimizer)
    assert scraped(monitor, "train_layer_weight_norm", layer="2") == 0.0
    assert scraped(monitor, "train_layer_update_ratio", layer="2") is None


def test_beyond_the_budget_no_copy_is_made_and_that_is_said(
    new_monitor: MonitorFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Weight norms need no copy and stay; the update ratio is left out with one sentence."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"sampling": {"weights": 1}, "layers": {"update_copy_parameters": 66}}
    monitor = new_monitor(model=model, optimizer=optimizer, settings=settings)
    assert caplog.text.count("update ratios are not measured: they need a copy of 67 parameters") == 1
    train_step(monitor, model, optimizer)
    assert scraped(monitor, "train_layer_weight_norm", layer="0") is not None
    assert scraped(monitor, "train_layer_update_ratio", layer="0") is None


def test_inactive_units_are_counted(new_monitor: MonitorFactory) -> None:
    """A ReLU's zeros and a tanh's saturated outputs are counted over all micro-batches of a step."""
    monitor, model, optimizer = build(new_monitor, activations=1)
    batches = torch.randn(6, 4) * 3.0, torch.randn(2, 4)
    with torch.no_grad():
        model[2].weight.mul_(20.0)
        hidden = [model[:2](batch) for batch in batches]
        outputs = [model[3](model[2](h)) for h in hidden]
    zeros = sum(int((h == 0).sum()) for h in hidden)
    saturated = sum(int((y.abs() > 0.99).sum()) for y in outputs)
    monitor.step(0.0)  # hooks are there from one step's end to the next
    for batch in batches:
        model(batch).sum().backward()
    model.eval()
    model(torch.zeros(100, 4))  # an evaluation is no part of training
    model.train()
    optimizer.step()
    monitor.step(0.0)
    assert layer_values(monitor, "train_layer_inactive_ratio", "1", "3") == pytest.approx(
        [zeros / 64, saturated / 24]
    )


@pytest.mark.parametrize(
    ("module", "inactive", "active"),
    [
        (torch.nn.ReLU(), -1.0, 1.0),
        (torch.nn.ReLU(inplace=True), -1.0, 1.0),
        (torch.nn.ReLU6(), 7.0, 5.0),
        (torch.nn.Tanh(), -4.0, 2.0),
        (torch.nn.Sigmoid(), 6.0, 2.0),
        (torch.nn.GELU(), -4.0, -0.5),
        (torch.nn.SiLU(), -8.0, -1.0),
    ],
)
def test_what_counts_as_inactive(
    new_monitor: MonitorFactory, module: torch.nn.Module, inactive: float, active: float
) -> None:
    """Each kind of activation has its own flat region."""
    model = torch.nn.Sequential(torch.nn.Identity(), module)
    monitor = new_monitor(model=model, settings={"sampling": {"activations": 1}})
    model(torch.tensor([inactive, active, active, active]))
    monitor.step(0.0)
    assert scraped(monitor, "train_layer_inactive_ratio", layer="1") == 0.25


def test_hooks_are_there_only_during_a_sampled_step(new_monitor: MonitorFactory) -> None:
    """Between sampled steps no module has a hook, and closing removes the last."""
    monitor, model, optimizer = build(new_monitor, activations=3)
    hooked = []
    for _ in range(7):
        hooked.append(any(module._forward_hooks for module in model.modules()))
        train_step(monitor, model, optimizer)
    assert hooked == [False, False, True, False, False, True, False]
    train_step(monitor, model, optimizer)
    assert any(module._forward_hooks for module in model.modules())
    monitor.close()
    assert not any(module._forward_hooks for module in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_non_finite_activations_and_weights_are_counted_once_a_sampled_step(
    new_monitor: MonitorFactory,
) -> None:
    """A NaN in a weight is seen in the weights and in what they compute."""
    monitor, model, optimizer = build(new_monitor, weights=1, activations=1)
    train_step(monitor, model, optimizer)
    for source in ("weight", "activation"):
        assert scraped(monitor, "train_nonfinite_total", source=source) == 0.0
    with torch.no_grad():
        model[2].weight[0, 0] = math.nan
    train_step(monitor, model, optimizer)
    for source in ("weight", "activation"):
        assert scraped(monitor, "train_nonfinite_total", source=source) == 1.0
    assert scraped(monitor, "train_layer_weight_norm", layer="0") is not None
    assert math.isnan(scraped(monitor, "train_layer_weight_norm", layer="2") or 0.0)


def test_equal_replicas_have_equal_checksums(new_monitor: MonitorFactory) -> None:
    """Two ranks that train alike export the same number for the same step; a drifting one does not."""
    found = []
    for disturbed in (False, False, True):
        monitor, model, optimizer = build(new_monitor, checksum=2)
        for _ in range(3):
            train_step(monitor, model, optimizer)
            if disturbed:
                with torch.no_grad():
                    model[0].weight[0, 0] *= 1.001
        assert scraped(monitor, "train_weight_checksum_step") == 2.0
        found.append(scraped(monitor, "train_weight_checksum"))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_signals_are_sampled_at_their_own_intervals(new_monitor: MonitorFactory) -> None:
    """Each signal is measured at the multiples of its interval, and 0 is never."""
    monitor, model, optimizer = build(
        new_monitor, grad_norm=2, layers=3, weights=0, activations=0, checksum=4
    )
    measured = []
    for _ in range(6):
        train_step(monitor, model, optimizer)
        measured.append(scraped(monitor, "train_step_grad_norm_count"))
    assert measured == [0, 1, 2, 3, 3, 4]  # steps 2, 3 (with its layers), 4 and 6
    assert scraped(monitor, "train_weight_checksum_step") == 4.0
    assert scraped(monitor, "train_layer_weight_norm", layer="0") is None
    assert scraped(monitor, "train_layer_inactive_ratio", layer="1") is None


def test_intervals_change_at_run_time(new_monitor: MonitorFactory) -> None:
    """set_sampling() turns a signal on and off, from the step after the next."""
    monitor, model, optimizer = build(new_monitor, weights=0)
    train_step(monitor, model, optimizer)
    monitor.set_sampling(weights=1, grad_norm=0)
    train_step(monitor, model, optimizer)
    assert scraped(monitor, "train_layer_weight_norm", layer="0") is None
    assert scraped(monitor, "train_step_grad_norm_count") == 2.0
    train_step(monitor, model, optimizer)
    assert scraped(monitor, "train_layer_weight_norm", layer="0") is not None
    assert scraped(monitor, "train_step_grad_norm_count") == 2.0


@pytest.mark.parametrize(
    ("intervals", "sentence"),
    [
        ({"weigths": 1}, "did you mean 'sampling.weights'"),
        ({"weights": -1}, "sampling.weights is not valid"),
        ({"weights": 1}, "sampling.weights = 1 has no effect without model and optimizer"),
    ],
)
def test_a_wrong_interval_is_refused(
    new_monitor: MonitorFactory, intervals: dict[str, int], sentence: str
) -> None:
    """A name that does not exist, a number that cannot be, and an interval without effect."""
    monitor = new_monitor()
    with pytest.raises(ConfigError, match=sentence):
        monitor.set_sampling(**intervals)


def test_an_interval_without_effect_is_refused_at_the_start(new_monitor: MonitorFactory) -> None:
    """A setting that asks for what nobody attached is an error; turning it off, or the default, is not."""
    with pytest.raises(ConfigError, match=r"sampling\.checksum = 5 has no effect without model"):
        new_monitor(settings={"sampling": {"checksum": 5}})
    new_monitor(settings={"sampling": {"checksum": 0}})


def test_other_ranks_measure_only_what_differs_by_rank(
    new_monitor: MonitorFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 has the global norm and the checksum, and no layers, unless they are asked for."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for everywhere in (False, True):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"sampling": EVERY_STEP, "layers": {"all_ranks": everywhere}}
        monitor = new_monitor(model=model, optimizer=optimizer, settings=settings)
        train_step(monitor, model, optimizer)
        assert scraped(monitor, "train_weight_checksum") is not None
        assert scraped(monitor, "train_step_grad_norm_count") == 1.0
        for name, layer in (
            ("train_layer_grad_norm", "0"),
            ("train_layer_weight_norm", "0"),
            ("train_layer_inactive_ratio", "1"),
        ):
            assert (scraped(monitor, name, layer=layer) is not None) is everywhere


def test_accumulated_gradients_make_one_record(new_monitor: MonitorFactory) -> None:
    """Four micro-batches and one optimizer step are one step, with the mean loss and the whole gradient."""
    monitor, model, optimizer = build(new_monitor, **EVERY_STEP)
    losses = []
    for number in range(4):
        loss = model(torch.full((2, 4), float(number))).square().mean() / 4
        loss.backward()
        monitor.micro_step(loss)
        losses.append(loss.item())
    expected = norm(*(p.grad for p in model.parameters()))
    optimizer.step()
    monitor.step()
    assert scraped(monitor, "train_steps_total") == 1.0
    assert scraped(monitor, "train_loss") == pytest.approx(sum(losses) / 4)
    assert scraped(monitor, "train_grad_norm") == pytest.approx(expected, rel=1e-5)
    assert scraped(monitor, "train_step_grad_norm_count") == 1.0
    squares = [v**2 for v in layer_values(monitor, "train_layer_grad_norm", "0", "2") if v]
    assert math.sqrt(sum(squares)) == pytest.approx(expected, rel=1e-5)


def test_a_probe_that_fails_is_switched_off_and_training_goes_on(
    new_monitor: MonitorFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Sparse gradients cannot be measured: that is said once, and the optimizer steps all the same."""
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    model = torch.nn.Sequential(embedding)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    monitor = new_monitor(model=model, optimizer=optimizer, settings={"sampling": {"weights": 1}})
    for _ in range(3):
        before = embedding.weight.detach().clone()
        optimizer.zero_grad()
        embedding(torch.tensor([1])).sum().backward()
        optimizer.step()
        monitor.step(0.0)
        assert not torch.equal(embedding.weight, before)
    assert caplog.text.count("gradients are not measured any more") == 1
    assert scraped(monitor, "train_steps_total") == 3.0
    assert scraped(monitor, "train_grad_norm") is None
    assert scraped(monitor, "train_layer_weight_norm", layer="0") is not None


def test_a_compiled_models_activations_are_not_measured_and_that_is_said(
    new_monitor: MonitorFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Hooks would not be called in compiled code, so there are none."""
    caplog.set_level("INFO", "trainswitch")
    in_place = small_model()
    in_place.compile(backend="eager")
    wrapped: Any = torch.compile(small_model(), backend="eager")
    for model in (in_place, wrapped):
        caplog.clear()
        monitor = new_monitor(model=model, settings={"sampling": {"activations": 1}})
        assert caplog.text.count("activations are not measured: a compiled model") == 1
        monitor.step(0.0)
        assert not any(module._forward_hooks for module in model.modules())
