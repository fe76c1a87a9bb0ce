from __future__ import annotations

import copy
import io
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from trainswitch.errors import CheckpointError, ConfigError
from trainswitch.intervention.training_state import RESERVED_NAMES, TrainingState


class Sampler:
    """A further state as users write them: its list shrinks as training goes on."""

    def __init__(self, left: list[Any]) -> None:
        self.left = left

    def state_dict(self) -> dict[str, Any]:
        """Return the list itself, as careless users do."""
        return {"left": self.left}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the list that is given."""
        self.left = state_dict["left"]


class Run:
    """A small training run whose every kind of state matters to the next loss."""

    def __init__(self, **optimizer_options: Any) -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), **{"lr": 0.01, **optimizer_options})
        self.scheduler = OneCycleLR(self.optimizer, max_lr=0.05, total_steps=100)
        self.sampler = Sampler(list(range(50)))
        self.state = TrainingState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            extra={"sampler": self.sampler},
        )

    def train(self, steps: int) -> list[float]:
        """Take steps that draw on every generator; return the losses."""
        losses = []
        for _ in range(steps):
            index = self.sampler.left.pop(random.randrange(len(self.sampler.left)))
            x = torch.randn(16, 4) + index / 50 + float(np.random.normal())
            loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def same(left: Any, right: Any) -> bool:
    """Whether two captured states are equal to the last bit."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def through_file(captured: dict[str, Any]) -> dict[str, Any]:
    """Save and load as the checkpoint store does."""
    buffer = io.BytesIO()
    torch.save(captured, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, map_location="cpu", weights_only=True)
    return loaded


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"lr": torch.tensor(0.01)}], ids=str)
@pytest.mark.parametrize("route", [copy.deepcopy, through_file], ids=["memory", "file"])
def test_a_restored_run_repeats_itself_bit_for_bit(
    options: dict[str, Any], route: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Weights, moments, schedule, dropout, data order and noise go on from the capture exactly as before."""
    run = Run(**options)
    run.train(10)
    captured = route(run.state.capture({"step": 10, "lr_factor": 0.5}))
    first = run.train(10)

    meta = run.state.restore(captured)
    second = run.train(10)

    assert meta == {"step": 10, "lr_factor": 0.5}
    assert first == second


def test_a_new_process_goes_on_where_the_checkpoint_was() -> None:
    """A freshly built run, whose optimizer has no moments yet, continues as the captured one did."""
    run = Run()
    run.train(10)
    captured = through_file(run.state.capture({}))
    expected = run.train(10)

    fresh = Run()
    fresh.state.restore(captured)

    assert expected == fresh.train(10)


def test_capturing_changes_nothing() -> None:
    """Losses with a capture after every step equal those without: no random number is drawn."""
    losses = Run().train(5)

    run = Run()
    observed = []
    for _ in range(5):
        observed += run.train(1)
        run.state.capture({})

    assert losses == observed


def test_a_capture_does_not_change_with_the_run() -> None:
    """What was captured is independent of the live objects, and stays so after a restore."""
    run = Run()
    run.train(3)
    captured = run.state.capture({"nested": [1, {"a": 2}]})
    reference = copy.deepcopy(captured)

    run.train(3)
    run.state.restore(captured)["nested"].append(3)
    run.train(3)

    assert same(reference, captured)


def test_a_tensor_learning_rate_stays_the_same_object() -> None:
    """A compiled step keeps reading the tensor it was made with, so a restore fills that one."""
    lr = torch.tensor(0.01)
    run = Run(lr=lr)
    live = run.optimizer.param_groups[0]["lr"]
    captured = run.state.capture({})
    at_capture = live.clone()
    run.train(5)

    run.state.restore(captured)

    assert run.optimizer.param_groups[0]["lr"] is live
    assert torch.equal(at_capture, live)


@pytest.mark.parametrize(
    "build",
    [
        lambda optimizer: LambdaLR(optimizer, lambda step: np.cos(step / 100)),
        lambda optimizer: MultiStepLR(optimizer, [2, 4]),
        lambda optimizer: SequentialLR(
            optimizer, [LinearLR(optimizer, 0.1, total_iters=2), CosineAnnealingLR(optimizer, 9)], [2]
        ),
        lambda optimizer: ReduceLROnPlateau(optimizer, patience=1),
    ],
    ids=["LambdaLR over NumPy", "MultiStepLR", "SequentialLR", "ReduceLROnPlateau"],
)
def test_schedulers_round_trip(build: Callable[[Any], Any]) -> None:
    """The learning rates after a restore are those after the capture, for every style of scheduler."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = build(optimizer)
    state = TrainingState(model=model, optimizer=optimizer, scheduler=scheduler)

    def go() -> list[float]:
        rates = []
        for _ in range(4):
            optimizer.step()
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(1.0)
            else:
                scheduler.step()
            rates.append(float(optimizer.param_groups[0]["lr"]))
        return rates

    go()
    captured = through_file(state.capture({}))
    expected = go()
    state.restore(captured)

    assert expected == go()


def test_versions_of_a_modules_state_are_kept() -> None:
    """The version numbers that modules read when they load an older state come through the file."""
    model = nn.BatchNorm1d(3)
    captured = through_file(TrainingState(model=model).capture({}))

    assert vars(model.state_dict())["_metadata"][""]["version"] == 2
    assert vars(model.state_dict()) == vars(captured["model"])


@pytest.mark.parametrize(
    ("value", "where", "kind"),
    [
        (object(), r"sampler\['left'\]\[1\]", "object"),
        (np.arange(3), r"sampler\['left'\]\[1\]", "numpy.ndarray"),
        ({"deep": (1, {2, 3}, io.BytesIO())}, r"sampler\['left'\]\[1\]\['deep'\]\[2\]", "_io.BytesIO"),
    ],
    ids=["object", "array", "nested"],
)
def test_what_could_not_be_loaded_again_is_refused_at_capture(value: Any, where: str, kind: str) -> None:
    """A further state with an object of its own is named with place and type, long before a rollback."""
    state = TrainingState(extra={"sampler": Sampler([0, value])})

    with pytest.raises(CheckpointError, match=f"^{where} is a {kind}, which") as caught:
        state.capture({})

    assert caught.value.reason == "state"


def test_a_state_dict_that_fails_is_named() -> None:
    """An exception in the user's own `state_dict` becomes a checkpoint error that names the state."""

    class Broken(Sampler):
        def state_dict(self) -> dict[str, Any]:
            raise KeyError("left")

    with pytest.raises(CheckpointError, match=r"'loader' cannot be captured: .* KeyError\('left'\)"):
        TrainingState(extra={"loader": Broken([])}).capture({})


@pytest.mark.parametrize("name", [*RESERVED_NAMES, ""])
def test_reserved_names_are_refused(name: str) -> None:
    """A further state cannot take a name that the checkpoint needs for itself."""
    with pytest.raises(ConfigError, match="choose a name other than"):
        TrainingState(extra={name: Sampler([])})


def test_an_object_without_state_is_refused() -> None:
    """An object that cannot be saved is refused when it is given, not at the first checkpoint."""
    with pytest.raises(ConfigError, match=r"'loader' is a list without state_dict\(\)"):
        TrainingState(extra={"loader": [1, 2]})  # type: ignore[dict-item]


def _change_key(captured: dict[str, Any]) -> None:
    captured["model"]["0.scale"] = captured["model"].pop("0.weight")


def _change_shape(captured: dict[str, Any]) -> None:
    captured["model"]["0.weight"] = torch.zeros(8, 5)


def _change_dtype(captured: dict[str, Any]) -> None:
    captured["model"]["0.bias"] = captured["model"]["0.bias"].double()


def _change_moment(captured: dict[str, Any]) -> None:
    captured["optimizer"]["state"][1]["exp_avg"] = torch.zeros(9)


def _change_optimizer(captured: dict[str, Any]) -> None:
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1)) for _ in range(6)], lr=0.1)
    captured["optimizer"] = other.state_dict()


def _change_groups(captured: dict[str, Any]) -> None:
    captured["optimizer"]["param_groups"] *= 2


def _change_parameters(captured: dict[str, Any]) -> None:
    captured["optimizer"]["param_groups"][0]["params"].pop()


def _change_scheduler(captured: dict[str, Any]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    captured["scheduler"] = ExponentialLR(optimizer, 0.9).state_dict()


def _drop_part(captured: dict[str, Any]) -> None:
    del captured["sampler"]


def _add_part(captured: dict[str, Any]) -> None:
    captured["ema"] = {}


def _drop_rng(captured: dict[str, Any]) -> None:
    del captured["rng"]


def _add_devices(captured: dict[str, Any]) -> None:
    captured["rng"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 99


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_change_key, r"model has no key '0.weight' in the checkpoint"),
        (_change_shape, r"model key '0.weight' has shape \(8, 5\) in the checkpoint and \(8, 4\) here"),
        (
            _change_dtype,
            r"model key '0.bias' has dtype torch.float64 in the checkpoint and torch.float32 here",
        ),
        (_change_moment, r"optimizer\['state'\]\[1\] key 'exp_avg' has shape \(9,\) in"),
        (_change_optimizer, r"optimizer\['param_groups'\]\[0\] has no key 'betas' in the checkpoint"),
        (_change_groups, r"optimizer has 2 parameter groups in the checkpoint and 1 here"),
        (_change_parameters, r"has 5 parameters in the checkpoint and 6 here"),
        (_change_scheduler, r"scheduler has (no|a) key"),
        (_drop_part, r"it holds no 'sampler', which this run has"),
        (_add_part, r"it holds 'ema', which this run does not have"),
        (_drop_rng, r"trainswitch did not write it"),
        (_add_devices, r"rng is of 99 CUDA devices and"),
    ],
    ids=lambda value: getattr(value, "__name__", "").lstrip("_"),
)
def test_a_checkpoint_that_does_not_fit_changes_nothing(
    change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    """A difference is found before anything is overwritten, and the message names part and key."""
    run = Run()
    run.train(3)
    captured = run.state.capture({})
    change(captured)
    run.train(3)
    before = run.state.capture({})

    with pytest.raises(CheckpointError, match=sentence) as caught:
        run.state.restore(captured)

    assert caught.value.reason == "state"
    assert "nothing was changed" in str(caught.value)
    assert same(before, run.state.capture({}))


def test_a_load_that_fails_half_way_is_undone() -> None:
    """When the last part refuses its state, what was already overwritten is put back, generators too."""

    class Refusing(Sampler):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            if len(self.left) == 50:
                raise ValueError("too long")

    run = Run()
    sampler = Refusing(list(range(50)))
    run.sampler = sampler
    state = TrainingState(
        model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, extra={"sampler": sampler}
    )
    captured = state.capture({})
    run.train(5)
    before = state.capture({})

    with pytest.raises(CheckpointError, match=r"into 'sampler' \(too long\); everything was put back"):
        state.restore(captured)

    assert same(before, state.capture({}))


def test_an_undo_that_fails_says_so() -> None:
    """A part that can be neither loaded nor put back is named, as the run must not go on with it."""

    class Dead(Sampler):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            raise ValueError("no")

    state = TrainingState(model=nn.Linear(1, 1), extra={"sampler": Dead([])})

    with pytest.raises(CheckpointError, match=r"sampler could not be put back, .* mixed: stop the run"):
        state.restore(state.capture({}))


def test_a_capture_costs_what_a_copy_costs() -> None:
    """On the training thread a save takes no more than copying every tensor to host memory does.

    Processor time of one thread, in pairs, so that other work on the machine changes little; the bound is
    generous, and a second copy would break it.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))  # 25 MB, with Adam's moments 75 MB
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 1024)).sum().backward()
    optimizer.step()
    state = TrainingState(model=model, optimizer=optimizer)
    tensors = [*model.parameters(), *(t for values in optimizer.state.values() for t in values.values())]
    assert sum(tensor.nbytes for tensor in tensors) > 50e6

    def taken(act: Callable[[], object]) -> float:
        begun = time.thread_time()
        act()
        return time.thread_time() - begun

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ratios = []
        for _ in range(5):
            plain = taken(lambda: [tensor.detach().clone() for tensor in tensors])
            ratios.append(taken(lambda: state.capture({})) / plain)
    finally:
        torch.set_num_threads(threads)
    assert statistics.median(ratios) < 1.5, ratios
