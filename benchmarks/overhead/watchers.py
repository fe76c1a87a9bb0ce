"""Who watches the loop: nobody, this monitor, or a peer. Each is a context that yields a `Watcher`.

The peers record what the monitor records at interval 1: loss, learning rate, gradient norm, and the gradient
norm of every parameter, each step, the way their own documentation shows it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

import trainswitch
from trainswitch.errors import ServerError

if TYPE_CHECKING:
    from benchmarks.overhead.workload import Workload


class Watcher(Protocol):
    """What the loop calls."""

    def clip(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients and return the norm they had."""

    def step(self, loss: torch.Tensor, norm: torch.Tensor, tokens: int) -> None:
        """Hear that a step has ended."""


_START_SECONDS = 30.0

Open = Callable[["Workload", Path], contextlib.AbstractContextManager[Watcher]]
"""Begins to watch a workload; the folder is home to whatever is written."""


class Nobody:
    """The loop as it is without any watcher."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def clip(self, max_norm: float) -> torch.Tensor:
        """Clip as PyTorch does."""
        return torch.nn.utils.clip_grad_norm_(self.workload.model.parameters(), max_norm)

    def step(self, loss: torch.Tensor, norm: torch.Tensor, tokens: int) -> None:
        """Do nothing."""


@contextlib.contextmanager
def nobody(workload: Workload, _home: Path) -> Iterator[Watcher]:
    """Watch nothing."""
    yield Nobody(workload)


class _Switch:
    def __init__(self, switch: trainswitch.Monitor) -> None:
        self.switch = switch

    def clip(self, max_norm: float) -> torch.Tensor:
        return self.switch.clip_grad_norm_(max_norm)

    def step(self, loss: torch.Tensor, _norm: torch.Tensor, tokens: int) -> None:
        self.switch.step(loss, tokens=tokens)


def monitor(*, isolate: bool, sampling: Mapping[str, int]) -> Open:
    """Return what attaches trainswitch with all its probes, its statistics warmed up.

    Checkpoints are left out: their price is that of the checkpoints, not of watching.
    """

    @contextlib.contextmanager
    def watch(workload: Workload, home: Path) -> Iterator[Watcher]:
        config = {
            "server": {"port": 0, "linger_seconds": 0, "targets_dir": home / "targets"},
            "control": {"folder": home / "control"},
            "checkpoint": {"folder": home / "checkpoints", "interval_steps": 0},
            "sampling": sampling,
        }
        switch = trainswitch.attach(
            workload.model,
            workload.optimizer,
            run="overhead",
            scheduler=workload.scheduler,
            config=config,
            isolate=isolate,
        )
        try:
            _wait_until_served(switch)
            yield _Switch(switch)
        finally:
            switch.close()

    return watch


def _wait_until_served(switch: trainswitch.Monitor) -> None:
    """Let a sidecar finish its start, which is not what a step costs."""
    deadline = time.monotonic() + _START_SECONDS
    while not _answers(switch.url):
        if time.monotonic() > deadline:
            raise ServerError(f"{switch.url or 'the monitor'} was not served within {_START_SECONDS:g} s.")
        time.sleep(0.05)


def _answers(url: str | None) -> bool:
    if url is None:
        return False
    try:
        with urllib.request.urlopen(url) as response:  # noqa: S310 - the endpoint just opened
            return bool(response.read())
    except OSError:
        return False


# ── peers ─────────────────────────────────────────────────────────────────────────────────────────────────


class _Peer(Nobody):
    """Reads every value with ``.item()`` and hands them on."""

    def __init__(self, workload: Workload, write: Callable[[dict[str, float]], None]) -> None:
        super().__init__(workload)
        self._write = write
        self._values: dict[str, float] = {}

    def clip(self, max_norm: float) -> torch.Tensor:
        for name, parameter in self.workload.model.named_parameters():
            if parameter.grad is not None:
                self._values[f"grad_norm/{name}"] = parameter.grad.norm().item()
        return super().clip(max_norm)

    def step(self, loss: torch.Tensor, norm: torch.Tensor, tokens: int) -> None:
        self._values["loss"] = loss.item()
        self._values["grad_norm"] = norm.item()
        self._values["tokens"] = tokens
        self._values["learning_rate"] = float(self.workload.scheduler.get_last_lr()[0])
        self._write(self._values)


@contextlib.contextmanager
def hooks_with_item(workload: Workload, _home: Path) -> Iterator[Watcher]:
    """Hooks on every module and parameter, each with an ``.item()`` a step."""
    values: dict[str, float] = {}

    def forward_hook(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
            values[f"activation_norm/{name}"] = output.detach().norm().item()

        return hook

    hooks = [
        module.register_forward_hook(forward_hook(name))
        for name, module in workload.model.named_modules()
        if not list(module.children())
    ]
    try:
        yield _Peer(workload, values.update)
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def tensorboard(workload: Workload, home: Path) -> Iterator[Watcher]:
    """``torch.utils.tensorboard.SummaryWriter``, a scalar each."""
    from torch.utils.tensorboard import SummaryWriter

    with tempfile.TemporaryDirectory(dir=home) as folder:
        writer = SummaryWriter(folder)
        steps = iter(range(2**31))

        def write(values: dict[str, float]) -> None:
            step = next(steps)
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        try:
            yield _Peer(workload, write)
        finally:
            writer.close()


@contextlib.contextmanager
def wandb_offline(workload: Workload, home: Path) -> Iterator[Watcher]:
    """``wandb.log`` of all values in offline mode."""
    import wandb

    with tempfile.TemporaryDirectory(dir=home) as folder:
        run = wandb.init(
            mode="offline",
            project="overhead",
            dir=folder,
            settings=wandb.Settings(silent=True, console="off"),
        )
        try:
            yield _Peer(workload, run.log)
        finally:
            run.finish()


@contextlib.contextmanager
def prometheus_gauges(workload: Workload, home: Path) -> Iterator[Watcher]:
    """A ``prometheus_client`` gauge per value, served by the library's own server and scraped likewise."""
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    gauge = prometheus_client.Gauge("train_value", "A value.", ["name"], registry=registry)

    def write(values: dict[str, float]) -> None:
        for name, value in values.items():
            gauge.labels(name).set(value)

    server, thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
    target = home / "targets" / "peer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps([{"targets": [f"127.0.0.1:{server.server_port}"], "labels": {}}]))
    try:
        yield _Peer(workload, write)
    finally:
        target.unlink()
        server.shutdown()
        server.server_close()
        thread.join()


PEERS: dict[str, tuple[Open, str | None]] = {
    "hooks_item": (hooks_with_item, None),
    "tensorboard": (tensorboard, "tensorboard"),
    "wandb_offline": (wandb_offline, "wandb"),
    "prometheus_client": (prometheus_gauges, "prometheus_client"),
}
"""Peer → how it watches, and the package it needs besides PyTorch."""


def missing(package: str | None) -> bool:
    """Whether a peer's package is not installed."""
    return package is not None and importlib.util.find_spec(package) is None


def quiet() -> None:
    """Keep watchers from writing to the terminal, and wandb from looking for its servers."""
    os.environ["WANDB_MODE"] = "offline"
    os.environ["WANDB_SILENT"] = "true"
    logging.getLogger("trainswitch").setLevel(logging.ERROR)
