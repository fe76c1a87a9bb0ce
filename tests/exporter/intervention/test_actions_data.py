"""Commands that reach the data: skip_batches, and a rollback that rewinds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.exporter.conftest import MonitorFactory
from tests.exporter.test_monitor import Loop

from trainswitch.errors import ActionRefused, CheckpointError, ConfigError
from trainswitch.intervention.commands import SkipBatchesParams
from trainswitch.intervention.data_feed import DataFeed


class StatefulLoader:
    """Shuffled batches by epoch; like torchdata's, it is put back by the next iterator after a load."""

    def __init__(self, batches: int = 50) -> None:
        self.batches = batches
        self.epoch = 0
        self.position = 0
        self.iterators = 0
        self._loaded: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Begin an epoch, or go on where a loaded state says."""
        self.iterators += 1
        start = {"epoch": self.epoch, "position": 0} if self._loaded is None else self._loaded
        self._loaded = None
        self.epoch = start["epoch"]
        order = torch.randperm(self.batches, generator=torch.Generator().manual_seed(self.epoch))
        for index in range(start["position"], self.batches):
            self.position = index + 1
            generator = torch.Generator().manual_seed(1000 * self.epoch + int(order[index]))
            yield torch.randn(2, 4, generator=generator)
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iterator stands."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator go on there."""
        self._loaded = dict(state)


class DataLoop(Loop):
    """The tiny run, fed by a loader that can be rewound, with dropout as a witness for random numbers."""

    def __init__(self, home: Path, monitor_factory: MonitorFactory, *, given: bool = True, **settings: Any):
        torch.manual_seed(0)
        self.home, self.seq = home, 0
        self.loader = StatefulLoader()
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.monitor = monitor_factory(
            model=self.model,
            optimizer=self.optimizer,
            data=self.loader if given else None,
            settings={"checkpoint": {"interval_steps": 10, "probation_steps": 5}, **settings},
        )
        self.by_step: list[tuple[int, float, float]] = []
        """Step, first number of its batch, and loss, in the order of their happening."""
        self.feed = self.endless()

    def endless(self) -> Iterator[torch.Tensor]:
        """Epoch after epoch."""
        while True:
            yield from self.monitor.batches(self.loader)

    def train(self, steps: int) -> list[float]:
        """Take steps on the next batches."""
        for _ in range(steps):
            batch = next(self.feed)
            loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            step = self.monitor.current_step + 1
            self.by_step.append((step, float(batch[0, 0]), loss.item()))
            self.monitor.step(loss)
        return [loss for _, _, loss in self.by_step[-steps:]]

    def ordered(self, action: str, **params: Any) -> Any:
        """Command, and return the answer."""
        self.command(action, params=params)
        return self.answered()


def saved(loop: DataLoop) -> int:
    """Train until a checkpoint is written, some steps on, and return its step."""
    assert loop.ordered("snapshot").result == "applied"
    loop.train(7)
    return loop.status().checkpoints[-1].step


def test_a_rewound_rollback_replays_bit_by_bit(home: Path, new_monitor: MonitorFactory) -> None:
    """The same batches with the same random numbers give the same losses, across the end of an epoch, too."""
    loop = DataLoop(home, new_monitor)
    loop.train(45)
    step = saved(loop)
    loop.train(10)
    answer = loop.ordered("rollback", step=step, data="rewind")
    assert answer.result == "applied"
    assert answer.step == step
    assert "The data goes back, too." in answer.detail
    assert answer.detail.startswith("rolled back from step")
    at = len(loop.by_step)
    loop.train(30)
    first = {number: rest for number, *rest in loop.by_step[: at - 1]}
    again = {number: rest for number, *rest in loop.by_step if number > step}
    replayed = [number for number in first if number > step]
    assert len(replayed) >= 17
    assert {number: again[number] for number in replayed} == {number: first[number] for number in replayed}


def test_a_rollback_leaves_the_data_where_it_is(home: Path, new_monitor: MonitorFactory) -> None:
    """By default the batches since the checkpoint are not trained on again: no new iterator is taken."""
    loop = DataLoop(home, new_monitor)
    loop.train(5)
    step = saved(loop)
    assert loop.ordered("rollback", step=step).result == "applied"
    loop.train(5)
    firsts = [first for _, first, _ in loop.by_step]
    assert len(set(firsts)) == len(firsts)
    assert loop.loader.iterators == 1


def test_without_a_checkpoint_from_before_a_step_the_oldest_stable_one_may_do(
    home: Path, new_monitor: MonitorFactory
) -> None:
    """Refused where that was not asked for; else loaded, and the answer says that it is later."""
    loop = DataLoop(home, new_monitor)
    loop.train(5)
    step = saved(loop)
    loop.train(5)  # it is stable, and not rotated away yet
    assert loop.ordered("rollback", before_step=step - 1).result == "failed"
    loop.train(1)
    answer = loop.ordered("rollback", before_step=step - 1, or_oldest=True)
    assert (answer.result, answer.step) == ("applied", step)
    assert f"keeps no stable one from step {step - 1} or before" in answer.detail


def test_a_new_session_goes_on_in_the_data(home: Path, new_monitor: MonitorFactory) -> None:
    """restore() puts the loader back, too: what follows is what followed without the break."""
    loop = DataLoop(home, new_monitor)
    loop.train(5)
    step = saved(loop)
    expected = [rest for number, *rest in loop.by_step if number > step]
    loop.monitor.close()
    again = DataLoop(home, new_monitor)
    assert again.monitor.restore(step) == step
    again.train(len(expected))
    assert [rest for _, *rest in again.by_step] == expected


def test_rewinding_without_a_position_is_refused(home: Path, new_monitor: MonitorFactory) -> None:
    """Without data=, or without batches(), nothing is rolled back, and the answer says what is missing."""
    loop = DataLoop(home, new_monitor, given=False)
    loop.train(3)
    answer = loop.ordered("rollback", data="rewind")
    assert answer.result == "refused"
    assert "pass the loader as attach(data=...)" in answer.detail
    loop.monitor.close()
    unfed = Loop(home, lambda **given: new_monitor(data=StatefulLoader(), run="run-1", **given))
    unfed.seq = loop.seq
    unfed.command("rollback", params={"data": "rewind"})
    answer = unfed.answered()
    assert answer.result == "refused"
    assert "switch.batches(loader)" in answer.detail


def test_the_name_data_is_taken_by_data(new_monitor: MonitorFactory) -> None:
    """Two parts of one name cannot be saved; without data= the name is free, and always loaded."""
    with pytest.raises(ConfigError, match="another name"):
        new_monitor(data=StatefulLoader(), state={"data": StatefulLoader()})
    weights = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="scaler=: give that state another name"):
        new_monitor(
            optimizer=torch.optim.SGD(weights.parameters()),
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            state={"scaler": StatefulLoader()},
        )


def test_further_state_called_data_is_loaded_by_every_rollback(
    home: Path, new_monitor: MonitorFactory
) -> None:
    """What state= holds is rolled back, whatever its name."""
    loader = StatefulLoader()
    loop = Loop(home, lambda **given: new_monitor(state={"data": loader}, **given))
    loader.epoch = 3
    loop.command("snapshot")
    assert loop.answered().result == "applied"
    loader.epoch = 4
    loop.command("rollback", params={"step": loop.status().checkpoints[-1].step})
    assert loop.answered().result == "applied"
    assert loader._loaded == {"epoch": 3, "position": 0}


def test_a_checkpoint_without_a_position_cannot_be_rewound_to(
    home: Path, new_monitor: MonitorFactory
) -> None:
    """A rollback to one that was saved before data= was given still works where it leaves the data alone."""
    loop = DataLoop(home, new_monitor, given=False)
    step = saved(loop)
    loop.monitor.close()
    again = DataLoop(home, new_monitor)
    again.seq = loop.seq
    again.train(3)
    answer = again.ordered("rollback", step=step, data="rewind")
    assert answer.result == "failed"
    assert "holds no 'data'" in answer.detail
    assert again.ordered("rollback", step=step).result == "applied"
    with pytest.raises(CheckpointError, match="holds no 'data'"):
        again.monitor.restore(step)


# ── skip_batches ──────────────────────────────────────────────────────────────────────────────────────


def test_skipped_batches_are_drawn_and_not_trained_on(home: Path, new_monitor: MonitorFactory) -> None:
    """The loader moves on by the count, the steps do not, and the answer says how many."""
    loop = DataLoop(home, new_monitor)
    loop.train(3)
    answer = loop.ordered("skip_batches", count=4)
    assert answer.result == "applied"
    assert "the next 4 batches are skipped" in answer.detail
    loop.train(2)
    assert loop.loader.position == loop.monitor.current_step + 4


def test_without_batches_skipping_is_refused(home: Path, new_monitor: MonitorFactory) -> None:
    """A loop that iterates its loader itself cannot be kept from a batch."""
    loop = Loop(home, new_monitor)
    loop.command("skip_batches", params={"count": 4})
    answer = loop.answered()
    assert answer.result == "refused"
    assert "switch.batches(loader)" in answer.detail


def test_skipping_goes_on_in_the_next_pass_and_spares_evaluations() -> None:
    """What is left at the end of an epoch is skipped in the next one; other loaders are not touched."""
    feed = DataFeed(lambda: False)
    training, validation = list(range(5)), list(range(100, 103))
    got = []
    for number in feed.batches(training):
        got.append(number)
        if number == 2:
            assert list(feed.batches(validation)) == validation  # within the step
            feed.skip(SkipBatchesParams(count=4))
    assert got == [0, 1, 2]
    assert list(feed.batches(validation)) == validation
    assert list(feed.batches(training)) == [2, 3, 4]


def test_two_skips_add_up_and_a_rewind_ends_them() -> None:
    """The batches that were to be skipped are counted from the place that a rewind leaves."""
    feed = DataFeed(lambda: False)
    got = feed.batches(range(10))
    next(got)
    feed.skip(SkipBatchesParams(count=2))
    assert "the next 5 batches" in feed.skip(SkipBatchesParams(count=3))
    assert next(got) == 6
    feed.skip(SkipBatchesParams(count=2))
    feed.rewind()
    assert next(got) == 0


def test_a_loop_that_was_left_is_not_the_one_that_is_trained_on() -> None:
    """What a rewind concerns is the loop that began last and has not ended."""
    feed = DataFeed(lambda: False)
    left, right = feed.batches([1, 2, 3]), feed.batches([4, 5, 6])
    assert [next(left), next(right), next(right)] == [1, 4, 5]
    feed.rewind()
    assert list(right) == [4, 5, 6]
    assert list(left) == [2, 3]
    for _ in feed.batches([7, 8]):
        break  # its generator is gone with it
    with pytest.raises(ActionRefused):
        feed.check_rewind()


def test_a_stop_ends_a_long_skip() -> None:
    """A run that is to end does not draw what is left to be skipped."""
    drawn: list[int] = []

    def load() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            yield number

    feed = DataFeed(lambda: len(drawn) >= 5)
    got = feed.batches(load())
    next(got)
    feed.skip(SkipBatchesParams(count=900))
    assert list(got) == []
    assert len(drawn) == 5


def test_an_iterator_that_begins_only_once_cannot_be_rewound() -> None:
    """The batches would go on where they are, and the answer would say otherwise; the loader itself can."""
    feed = DataFeed(lambda: False)
    loader = StatefulLoader()
    once = feed.batches(enumerate(loader))
    next(once)
    with pytest.raises(ActionRefused, match=r"an iterator \(enumerate\), which begins only once"):
        feed.check_rewind()
    once.close()  # type: ignore[attr-defined] # a generator, declared as the iterator that it is
    again = feed.batches(loader)
    next(again)
    feed.check_rewind()
