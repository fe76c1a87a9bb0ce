"""Values reach the host in order, late rather than waited for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from trainswitch.probes.readout import Readout, VectorReadout


class FakeEvent:
    """An event that completes when the test says so; waiting for it is an error unless allowed."""

    waiting_allowed = False

    def __init__(self, made: list[FakeEvent]) -> None:
        made.append(self)
        self.done = False

    def record(self) -> None:
        """Begin anew."""
        self.done = False

    def query(self) -> bool:
        """As a CUDA event."""
        return self.done

    def synchronize(self) -> None:
        """As a CUDA event."""
        assert FakeEvent.waiting_allowed, "the training thread waited for the device"
        self.done = True


class FakeDevice:
    """A readout whose 'device' values are double-precision CPU tensors."""

    def __init__(self, slots: int = 8) -> None:
        self.events: list[FakeEvent] = []
        self.seen: list[tuple[Any, Any]] = []
        self.readout = Readout(
            lambda item, values: self.seen.append((item, values)),
            slots=slots,
            new_event=lambda: FakeEvent(self.events),
            on_device=lambda value: isinstance(value, torch.Tensor) and value.dtype == torch.float64,
        )


def on_device(value: float) -> torch.Tensor:
    """A value that counts as being on the device."""
    return torch.tensor(value, dtype=torch.float64)


def test_host_values_are_handed_over_at_once() -> None:
    """Floats, ints, CPU tensors with a gradient, and None need no copy."""
    device = FakeDevice()
    device.readout.submit(1, (2.5, None))
    device.readout.submit(2, (torch.tensor(3.0, requires_grad=True) * 1, 4))
    assert device.seen == [(1, (2.5, None)), (2, (3.0, 4.0))]


def test_device_values_come_when_their_event_has_completed() -> None:
    """A step is published late, with its own values, and nobody waits."""
    device = FakeDevice()
    device.readout.submit(1, (on_device(1.5), 0.5))
    device.readout.submit(2, (on_device(2.5), on_device(0.25)))
    assert device.seen == []
    device.events[0].done = True
    device.readout.poll()
    assert device.seen == [(1, (1.5, 0.5))]
    device.events[1].done = True
    device.readout.submit(3, (on_device(3.5), None))
    assert device.seen == [(1, (1.5, 0.5)), (2, (2.5, 0.25))]


def test_the_order_of_steps_is_kept() -> None:
    """A step whose values are on the host waits for the steps before it."""
    device = FakeDevice()
    device.readout.submit(1, (on_device(math.nan), None))
    device.readout.submit(2, (2.0, None))
    assert device.seen == []
    device.events[0].done = True
    device.readout.poll()
    assert [item for item, _ in device.seen] == [1, 2]
    assert math.isnan(device.seen[0][1][0])


def test_a_device_that_is_far_behind_loses_values_but_no_step(caplog: pytest.LogCaptureFixture) -> None:
    """With all slots on their way, a step is published without its values, and a sentence says so once."""
    device = FakeDevice(slots=2)
    for number in range(4):
        device.readout.submit(number, (on_device(float(number)), None))
    for event in device.events:
        event.done = True
    device.readout.poll()
    assert device.seen == [(0, (0.0, None)), (1, (1.0, None)), (2, (None, None)), (3, (None, None))]
    assert caplog.text.count("more than 2 steps behind") == 1


def test_flush_is_the_only_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a run the last values are waited for."""
    device = FakeDevice()
    device.readout.submit(1, (on_device(7.0), None))
    monkeypatch.setattr(FakeEvent, "waiting_allowed", True)
    device.readout.flush()
    assert device.seen == [(1, (7.0, None))]


@pytest.mark.parametrize("value", ["text", torch.zeros(3), object(), [1.0, 2.0]])
def test_what_is_not_one_number_is_left_out_with_a_sentence(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong type never raises into the training loop."""
    device = FakeDevice()
    device.readout.submit(1, (value, 1.0))
    assert device.seen == [(1, (None, 1.0))]
    assert "is not one number" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_real_device_is_never_waited_for() -> None:
    """With sync debugging on, a thousand device losses are read without one synchronisation."""
    seen: list[Any] = []
    readout = Readout(lambda item, values: seen.append((item, values)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in range(1000):
            readout.submit(number, (torch.ones((), device="cuda") * number, None))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    readout.flush()
    assert [values[0] for _, values in seen] == [float(number) for number in range(1000)]


class FakeVectors:
    """A vector readout whose 'device' tensors are double-precision CPU tensors."""

    def __init__(self, limit: int = 8) -> None:
        self.events: list[FakeEvent] = []
        self.seen: list[tuple[Any, list[float]]] = []
        self.readout = VectorReadout(
            lambda item, values: self.seen.append((item, values)),
            limit=limit,
            new_event=lambda: FakeEvent(self.events),
            on_device=lambda value: value.dtype == torch.float64,
        )


def vector(*values: float) -> torch.Tensor:
    """A vector that counts as being on the device."""
    return torch.tensor(values, dtype=torch.float64)


def test_a_vector_on_the_host_is_handed_over_at_once() -> None:
    """On the CPU there is nothing to wait for."""
    device = FakeVectors()
    device.readout.submit(1, torch.tensor([1.5, 2.5]))
    assert device.seen == [(1, [1.5, 2.5])]


def test_vectors_come_in_order_when_their_event_has_completed() -> None:
    """Each vector is one copy with one event; a later one on the host waits for those before it."""
    device = FakeVectors()
    source = vector(1.0, 2.0, 3.0)
    device.readout.submit(1, source)
    source.zero_()  # the copy was made behind the work that had been queued before
    device.readout.submit(2, torch.tensor([4.0]))
    assert device.seen == []
    assert len(device.events) == 1
    device.events[0].done = True
    device.readout.poll()
    assert device.seen == [(1, [1.0, 2.0, 3.0]), (2, [4.0])]


def test_a_device_far_behind_loses_samples_with_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond the limit a sample is given up rather than waited for, and that is said once."""
    device = FakeVectors(limit=2)
    for number in range(4):
        device.readout.submit(number, vector(float(number)))
    for event in device.events:
        event.done = True
    device.readout.poll()
    assert device.seen == [(0, [0.0]), (1, [1.0])]
    assert caplog.text.count("more than 2 samples behind") == 1


def test_flush_waits_for_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a run the last vectors are waited for."""
    device = FakeVectors()
    device.readout.submit(1, vector(7.0))
    monkeypatch.setattr(FakeEvent, "waiting_allowed", True)
    device.readout.flush()
    assert device.seen == [(1, [7.0])]
