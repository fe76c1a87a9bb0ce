"""What the allocator of a CUDA device holds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.exporter.conftest import MonitorFactory
from tests.exporter.probes.conftest import scraped, small_model, train_step

from trainswitch.probes import model as model_probes
from trainswitch.probes.memory import INTERVAL_SECONDS, DeviceMemory, cuda_device
from trainswitch.recording.records import Kind

CAPACITY = 80 * 2**30


class Allocator:
    """Stands for PyTorch's allocator on a device that this machine need not have."""

    def __init__(self) -> None:
        self.asked = 0
        self.allocated = 5.0
        self.retries = 0
        self.plugged_in = True

    def stats(self, device: torch.device) -> dict[str, Any]:
        """What ``torch.cuda.memory_stats_as_nested_dict`` returns, as far as it is read."""
        assert device == torch.device("cuda", 1)
        self.asked += 1
        if not self.plugged_in:
            return {}
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": 9}},
            "reserved_bytes": {"all": {"current": 12, "peak": 12}},
            "num_alloc_retries": self.retries,
            "num_ooms": 1,
        }


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    """An allocator in the place of the device's."""
    fake = Allocator()
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", fake.stats)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=CAPACITY)
    )
    return fake


def test_it_is_asked_at_the_end_of_a_step_and_at_most_once_a_second(allocator: Allocator) -> None:
    """Fast steps ask once a second, slow ones each time; a record has the bytes and both counters."""
    now = 100.0
    records: list[tuple[Any, ...]] = []
    probe = DeviceMemory(torch.device("cuda", 1), lambda *record, **_: records.append(record), lambda: now)
    for number in range(5):
        probe.end_step(number)
    assert records == [(Kind.MEMORY, 0, (5.0, 12, 9, CAPACITY, 0, 1))]
    assert allocator.asked == 1
    now += INTERVAL_SECONDS
    probe.end_step(5)
    assert [record[1] for record in records] == [0, 5]


def test_another_allocator_has_no_record(allocator: Allocator) -> None:
    """Where PyTorch's allocator is replaced there is nothing to tell, and nothing fails."""
    allocator.plugged_in = False
    records: list[tuple[Any, ...]] = []
    DeviceMemory(torch.device("cuda", 1), lambda *record, **_: records.append(record)).end_step(1)
    assert records == []
    assert allocator.asked == 1


def test_what_it_holds_reaches_the_endpoint(
    new_monitor: MonitorFactory, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are gauges; retries and errors of the process count up, each once."""
    monkeypatch.setattr(model_probes, "cuda_device", lambda tensors: torch.device("cuda", 1))
    monkeypatch.setattr("trainswitch.probes.memory.INTERVAL_SECONDS", 0.0)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = new_monitor(model=model, optimizer=optimizer)
    for retries in (2, 2, 3):
        allocator.retries = retries
        allocator.allocated += 1
        train_step(monitor, model, optimizer)
    kinds = ("allocated", "reserved", "peak", "capacity")
    held = [scraped(monitor, "train_device_memory_bytes", kind=kind) for kind in kinds]
    assert held == [8.0, 12.0, 9.0, float(CAPACITY)]
    assert scraped(monitor, "train_cuda_alloc_retries_total") == 3.0
    assert scraped(monitor, "train_cuda_ooms_total") == 1.0


def test_a_failing_allocator_ends_its_own_measurement_only(
    new_monitor: MonitorFactory, allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step goes on, the other probes too, and the allocator is not asked again."""
    monkeypatch.setattr(model_probes, "cuda_device", lambda tensors: torch.device("cuda", 1))
    monkeypatch.setattr("trainswitch.probes.memory.INTERVAL_SECONDS", 0.0)
    asked = []

    def fail(device: torch.device) -> dict[str, Any]:
        asked.append(device)
        raise RuntimeError("no memory statistics today")

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", fail)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = new_monitor(model=model, optimizer=optimizer)
    for _ in range(3):
        train_step(monitor, model, optimizer)
    assert len(asked) == 1
    assert scraped(monitor, "train_steps_total") == 3.0
    assert scraped(monitor, "train_grad_norm") is not None
    assert scraped(monitor, "train_device_memory_bytes", kind="allocated") is None


def test_a_model_on_the_host_has_no_device_memory(new_monitor: MonitorFactory) -> None:
    """Without a CUDA device there is no series, and the counters stay at zero."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = new_monitor(model=model, optimizer=optimizer)
    train_step(monitor, model, optimizer)
    assert cuda_device(model.parameters()) is None
    assert scraped(monitor, "train_device_memory_bytes", kind="allocated") is None
    assert scraped(monitor, "train_cuda_alloc_retries_total") == 0.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_real_allocator_tells_what_a_tensor_takes() -> None:
    """A tensor that is kept shows in the next record; the statistics have the names that are read here."""
    records: list[tuple[Any, ...]] = []
    device = torch.zeros(1, device="cuda").device
    probe = DeviceMemory(device, lambda *record, **_: records.append(record), iter(range(0, 100, 2)).__next__)
    probe.end_step(1)
    kept = torch.zeros(2**18, device=device)
    probe.end_step(2)
    before, after = (record[2] for record in records)
    assert after[0] - before[0] == kept.numel() * 4
    assert after[2] >= after[0]
    assert after[1] >= after[0]
    assert after[3] == torch.cuda.get_device_properties(device).total_memory
