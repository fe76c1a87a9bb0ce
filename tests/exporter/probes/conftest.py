"""What the tests of the probes share."""

from __future__ import annotations

from typing import Any

import torch
from tests.exporter.conftest import sample

from trainswitch.metrics.endpoint import Endpoint
from trainswitch.monitor import Monitor


def small_model() -> torch.nn.Sequential:
    """Two linear layers with a ReLU between them and a tanh at the end."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3), torch.nn.Tanh())


def rendered(monitor: Monitor) -> bytes:
    """What a scrape would see now."""
    assert isinstance(monitor._endpoint, Endpoint)
    return monitor._endpoint.aggregator.render()


def scraped(monitor: Monitor, name: str, **labels: str) -> float | None:
    """The value of one series, as a scrape would see it now."""
    return sample(rendered(monitor), name, **labels)


def layer_values(monitor: Monitor, name: str, *layers: str) -> list[float | None]:
    """The values of a layer metric, by layer."""
    return [scraped(monitor, name, layer=layer) for layer in layers]


def train_step(
    monitor: Monitor, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **step: Any
) -> None:
    """One step on the same batch."""
    optimizer.zero_grad()
    loss = (model(torch.linspace(-2, 2, 20).reshape(5, 4)) ** 2).sum()
    loss.backward()
    optimizer.step()
    monitor.step(loss, **step)
