"""What TensorBoard reads back from its event files."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tests.exporter.sinks.support import evaluation_record, new_aggregator, step_record, write_step

from trainswitch.recording.records import Record
from trainswitch.sinks.sink import Derived
from trainswitch.sinks.tensorboard import TensorBoardSink

LAYOUT = "custom_scalars__config__"


class Reader:
    """A folder of event files as TensorBoard sees it."""

    def __init__(self, folder: Path) -> None:
        self._accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})

    def scalars(self, tag: str) -> list[tuple[int, float]]:
        """Return (step, value) of a tag, as of now."""
        self._accumulator.Reload()
        return [(event.step, event.value) for event in self._accumulator.Scalars(tag)]

    def tags(self) -> set[str]:
        """Return the tags of all scalars, as of now."""
        self._accumulator.Reload()
        return set(self._accumulator.Tags()["scalars"])

    def layout(self) -> layout_pb2.Layout:
        """Return the layout of the Custom Scalars page."""
        self._accumulator.Reload()
        (event, *_) = self._accumulator.Tensors(LAYOUT)
        return layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    """A reader of the folder that the test writes to."""
    return Reader(tmp_path)


def write(folder: Path, *records: Record, derived: Derived | None = None) -> TensorBoardSink:
    """Write `records` and return the sink."""
    sink = TensorBoardSink(folder, 2**20)
    for record in records:
        sink.take(record, derived or Derived())
    sink.flush()
    return sink


def test_a_step_and_its_limits_come_back(tmp_path: Path, reader: Reader) -> None:
    """Each value has its tag, and the limits are three sigma from the centre line."""
    record = step_record(7, 2.0, 3.0, epoch=0.5, loss_scale=1024.0, rates=[0.5, 0.25])
    write(tmp_path, record, derived=Derived(center=1.5, sigma=0.25))
    assert {tag: reader.scalars(tag) for tag in reader.tags()} == {
        "loss/value": [(7, 2.0)],
        "loss/center": [(7, 1.5)],
        "loss/lower_limit": [(7, 0.75)],
        "loss/upper_limit": [(7, 2.25)],
        "gradients/norm": [(7, 3.0)],
        "learning_rate/group_0": [(7, 0.5)],
        "learning_rate/group_1": [(7, 0.25)],
        "time/step_seconds": [(7, 0.5)],
        "time/data_wait_seconds": [(7, 0.25)],
        "time/tokens_per_second": [(7, 128.0)],
        "progress/epoch": [(7, 0.5)],
        "progress/loss_scale": [(7, 1024.0)],
    }


def test_values_that_are_not_finite_are_shown(tmp_path: Path, reader: Reader) -> None:
    """NaN and infinity are points, too; a number beyond single precision is shown as infinite."""
    write(tmp_path, *(step_record(n, value) for n, value in enumerate((math.nan, -math.inf, 1e300))))
    (_, first), (_, second), (_, third) = reader.scalars("loss/value")
    assert math.isnan(first)
    assert (second, third) == (-math.inf, math.inf)


def test_after_a_rollback_the_abandoned_steps_are_gone(tmp_path: Path, reader: Reader) -> None:
    """TensorBoard shows the run that counts, also while it is looking on; evaluations purge nothing."""
    sink = write(tmp_path, *(step_record(n, 2.0) for n in range(1, 6)), evaluation_record(3, "val_loss", 1.0))
    assert [step for step, _ in reader.scalars("loss/value")] == [1, 2, 3, 4, 5]
    for record in (step_record(4, 1.0), evaluation_record(4, "val_loss", 0.5), step_record(5, 1.0)):
        sink.take(record, Derived())
    sink.flush()
    assert reader.scalars("loss/value") == [(1, 2.0), (2, 2.0), (3, 2.0), (4, 1.0), (5, 1.0)]
    assert reader.scalars("evaluation/val_loss") == [(3, 1.0), (4, 0.5)]


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path, reader: Reader) -> None:
    """A new start at an earlier step replaces what its predecessor did beyond it."""
    write(tmp_path, *(step_record(n, 2.0) for n in range(1, 6)))
    write(tmp_path, *(step_record(n, 1.0) for n in range(4, 7)))
    assert reader.scalars("loss/value") == [(1, 2.0), (2, 2.0), (3, 2.0), (4, 1.0), (5, 1.0), (6, 1.0)]


def test_the_layout_draws_every_tag_of_the_loss_within_its_limits(tmp_path: Path, reader: Reader) -> None:
    """The Custom Scalars page has a control chart, and no chart of it names a tag that nobody writes."""
    records = step_record(1), evaluation_record(1, "val_loss", 1.0)
    write(tmp_path, *records, derived=Derived(center=1.0, sigma=0.5))
    layout = reader.layout()
    assert [category.title for category in layout.category] == ["Loss", "Gradients", "Time", "Evaluation"]
    (control_chart,) = layout.category[0].chart
    (loss, center) = control_chart.margin.series
    assert (loss.value, loss.lower, loss.upper) == ("loss/value", "loss/lower_limit", "loss/upper_limit")
    assert center.value == "loss/center"
    tags = reader.tags()
    assert {loss.value, loss.lower, loss.upper, center.value} <= tags
    patterns = [p for category in layout.category for chart in category.chart for p in chart.multiline.tag]
    assert len(patterns) == 6
    for pattern in patterns:
        assert any(re.match(pattern, tag) for tag in tags), pattern


def test_old_parts_go_and_the_layout_stays(tmp_path: Path) -> None:
    """Every part can be read alone, so that removing the oldest costs nothing but its steps."""
    sink = TensorBoardSink(tmp_path, 80_000)
    for number in range(1000):
        sink.take(step_record(number), Derived())
        sink.flush()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 80_000
    reader = Reader(tmp_path)
    steps = [step for step, _ in reader.scalars("loss/value")]
    assert 0 < steps[0] < steps[-1] == 999
    assert steps == list(range(steps[0], 1000))
    assert reader.layout().category[0].title == "Loss"


def test_the_aggregator_gives_it_the_control_limits(tmp_path: Path) -> None:
    """Once the control chart has its centre line, the limits are written beside the loss."""
    ring, aggregator = new_aggregator(tensorboard={"folder": str(tmp_path)})
    for number in range(1, 31):
        write_step(ring, number, 2.0 + 0.1 * (number % 3))
    aggregator.close()
    reader = Reader(tmp_path / "r" / "rank-0")
    assert [step for step, _ in reader.scalars("loss/value")] == list(range(1, 31))
    for (step, lower), (_, center), (_, upper) in zip(
        *(reader.scalars(f"loss/{tag}") for tag in ("lower_limit", "center", "upper_limit")), strict=True
    ):
        assert step >= 10
        assert lower < center < upper
        assert 1.9 < center < 2.3
