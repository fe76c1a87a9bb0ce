"""Sinks beside everything else: chosen by the settings, and no trouble of theirs ends the monitoring."""

from __future__ import annotations

import csv
import logging
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.conftest import MonitorFactory, sample
from tests.exporter.sinks.support import (
    evaluation_record,
    new_aggregator,
    parts_of,
    step_record,
    write_step,
)

from trainswitch.config import MonitorConfig, load_config
from trainswitch.errors import ConfigError
from trainswitch.recording.records import Record
from trainswitch.sinks.csv_file import CsvSink
from trainswitch.sinks.group import MOST_WAITING, RETRY_SECONDS, SinkGroup
from trainswitch.sinks.sink import Derived


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


class Recorder:
    """A sink that keeps what it is given, and fails while `broken`."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.broken: Exception | None = None
        self.opened = 0
        self.closed = 0

    def open(self) -> Recorder:
        """Open it once more."""
        self.opened += 1
        if self.broken is not None:
            raise self.broken
        return self

    def take(self, record: Record, derived: Derived) -> None:
        """Keep the step."""
        self.taken.append(record.step)

    def flush(self) -> None:
        """Fail while broken."""
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        """Count it."""
        self.closed += 1


def steps_in(folder: Path) -> list[int]:
    """Return the steps of all parts of a CSV."""
    steps = []
    for path in parts_of(folder):
        with path.open(newline="") as handle:
            steps += [int(row["step"]) for row in csv.DictReader(handle)]
    return steps


def test_none_by_default(home: Path, new_monitor: MonitorFactory) -> None:
    """A monitor without sinks writes no such file, and its error counters are there at zero."""
    _, aggregator = new_aggregator()
    text = aggregator.render()
    assert sample(text, "trainswitch_sink_errors_total", sink="csv") == 0.0
    assert sample(text, "trainswitch_sink_errors_total", sink="tensorboard") == 0.0
    monitor = new_monitor()
    monitor.step(loss=1.0)
    monitor.close()
    assert not (home / "csv").exists()
    assert not (home / "tensorboard").exists()


def test_a_monitor_writes_every_step_and_evaluation_by_its_end(
    home: Path, new_monitor: MonitorFactory
) -> None:
    """What the loop reported is in the file when close() returns; an evaluation stands at its step."""
    monitor = new_monitor(run="r", settings={"sinks": {"csv": {}, "tensorboard": {}}})
    for _ in range(20):
        monitor.step(loss=1.0)
    monitor.evaluate(val_loss=2.0)
    monitor.close()
    assert steps_in(home / "csv") == [*range(1, 21), 20]
    (event_file,) = parts_of(home / "tensorboard")
    assert "tfevents" in event_file.name


@pytest.mark.parametrize(("rank", "everyone", "written"), [(0, False, 1), (3, False, 0), (3, True, 1)])
def test_other_ranks_write_only_where_asked_to(
    tmp_path: Path, rank: int, everyone: bool, written: int
) -> None:
    """A thousand ranks do not make a thousand files unless somebody wants them."""
    ring, aggregator = new_aggregator(rank, csv={"folder": str(tmp_path)}, all_ranks=everyone)
    write_step(ring, 1, 1.0)
    aggregator.close()
    assert len(list(tmp_path.glob(f"r/rank-{rank}/*"))) == written


def test_one_step_in_n_is_written_and_every_one_that_is_not_finite(tmp_path: Path) -> None:
    """At an interval, the step that matters is not the one that is left out."""
    ring, aggregator = new_aggregator(csv={"folder": str(tmp_path)}, interval_steps=10)
    for number in range(1, 31):
        write_step(ring, number, math.nan if number == 13 else 1.0, math.inf if number == 17 else 1.0)
    aggregator.close()
    assert steps_in(tmp_path) == [10, 13, 17, 20, 30]


def test_rates_beyond_the_step_record_arrive(tmp_path: Path) -> None:
    """Parameter groups that travel in records of their own are written at the same steps."""
    ring, aggregator = new_aggregator(tensorboard={"folder": str(tmp_path)}, interval_steps=2)
    for number in (1, 2):
        write_step(ring, number, 1.0, rates=[0.5] * 12)
    aggregator.close()
    (path,) = parts_of(tmp_path)
    assert path.read_bytes().count(b"learning_rate/group_11") == 1


def test_a_sink_that_fails_is_dropped_counted_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """One sentence when it begins and one when it is over, which says what is missing; the other goes on."""
    clock = Clock()
    errors: list[str] = []
    bad, good = Recorder(), Recorder()
    group = SinkGroup(
        {"bad": bad.open, "good": good.open}, interval_steps=1, on_error=errors.append, clock=clock
    )

    def feed(step: int) -> None:
        group.take(step_record(step), Derived())
        group.flush()

    feed(1)
    bad.broken = OSError(28, "No space left on device", "/full/steps.csv")
    with caplog.at_level(logging.WARNING, "trainswitch"):
        feed(2)
        feed(3)
        clock.now += RETRY_SECONDS
        feed(4)
        clock.now += RETRY_SECONDS - 1
        feed(5)
        (sentence,) = caplog.messages
        assert "the bad sink cannot write: No space left on device (/full/steps.csv)" in sentence
        assert "tried again every 30 s" in sentence
        assert errors == ["bad", "bad"]
        bad.broken = None
        clock.now += 1
        feed(6)
        feed(7)
    assert caplog.messages[1:] == ["the bad sink writes again; 4 records are not in it."]
    assert bad.taken == [1, 2, 6, 7]
    assert good.taken == [1, 2, 3, 4, 5, 6, 7]
    group.close()
    assert (bad.closed, good.closed) == (1, 1)


def test_any_error_of_a_sink_is_contained() -> None:
    """Not only the disk: whatever a sink raises, at any point, is counted and goes no further."""
    errors: list[str] = []
    sink = Recorder()
    sink.broken = ImportError("a broken installation")
    group = SinkGroup({"x": sink.open}, interval_steps=1, on_error=errors.append)
    group.take(evaluation_record(1, "m", 1.0), Derived())
    group.flush()
    group.close()
    assert errors == ["x"]
    assert sink.opened == 1


def test_a_full_disk_costs_rows_and_nothing_else(tmpfs: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Both sinks on a disk that fills up: metrics go on, errors are counted, whole rows are left."""
    where = {"folder": str(tmpfs)}
    ring, aggregator = new_aggregator(csv=where, tensorboard=where)
    for batch in range(20):
        for number in range(batch * 50, batch * 50 + 50):
            write_step(ring, number, 2.0, 1.0)
        aggregator.drain()
        aggregator._write_sinks(aggregator._sinks.flush)
    aggregator.close()
    text = aggregator.render()
    assert sample(text, "train_steps_total") == 1000
    assert sample(text, "trainswitch_sink_errors_total", sink="csv") == 1
    assert sample(text, "trainswitch_sink_errors_total", sink="tensorboard") == 1
    assert sample(text, "trainswitch_records_dropped_total") == 0
    assert len([line for line in caplog.messages if "No space left on device" in line]) == 2
    for path in tmpfs.glob("r/rank-0/*.csv"):
        lines = path.read_text().splitlines(keepends=True)
        assert all(line.endswith("\n") and line.count(",") == lines[0].count(",") for line in lines)


def test_a_disk_that_has_room_again_is_used_again(tmpfs: Path) -> None:
    """After the retry interval the sink starts a new part; no empty part was left behind meanwhile."""
    ballast = tmpfs / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(b"x" * 100_000)
    clock = Clock()
    errors: list[str] = []
    group = SinkGroup(
        {"csv": lambda: CsvSink(tmpfs / "r" / "rank-0", 2**20)},
        interval_steps=1,
        on_error=errors.append,
        clock=clock,
    )
    for step in range(3):
        group.take(step_record(step), Derived())
        group.flush()
        clock.now += RETRY_SECONDS
    assert len(errors) == 3
    ballast.unlink()
    group.take(step_record(3), Derived())
    group.flush()
    assert steps_in(tmpfs) == [3]


def test_a_read_only_disk_is_one_sentence(tmpfs: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The trainer starts and trains on a disk that cannot be written."""
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    ring, aggregator = new_aggregator(csv={"folder": str(tmpfs)})
    write_step(ring, 1, 1.0)
    aggregator.close()
    assert sample(aggregator.render(), "trainswitch_sink_errors_total", sink="csv") == 1
    (sentence,) = caplog.messages
    assert "Read-only file system" in sentence
    assert str(tmpfs) in sentence


def test_a_disk_that_does_not_answer_holds_up_neither_scrapes_nor_the_count(caplog: Any) -> None:
    """While a write hangs, records are taken in; beyond a bound they are left out of the file and counted."""
    entered, release = threading.Event(), threading.Event()

    class Hanging(Recorder):
        def flush(self) -> None:
            entered.set()
            assert release.wait(60.0)

    sink = Hanging()
    group = SinkGroup({"slow": sink.open}, interval_steps=1, on_error=lambda _: None)
    record = step_record(1)
    group.take(record, Derived())
    writer = threading.Thread(target=group.flush)
    writer.start()
    assert entered.wait(60.0)
    for _ in range(MOST_WAITING + 5):
        group.take(record, Derived())
    release.set()
    writer.join()
    group.close()
    assert len(sink.taken) == 1 + MOST_WAITING
    assert "5 records are not in it" in caplog.text


def test_tensorboard_without_its_package_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that could have no effect is an error, with the command that mends it."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"pip install 'trainswitch\[tensorboard\]'"):
        load_config({"sinks": {"tensorboard": {}}})


@pytest.mark.parametrize("settings", [{"interval_steps": 10}, {"all_ranks": True}, {"max_bytes": 2**20}])
def test_settings_without_a_sink_are_refused(settings: dict[str, Any]) -> None:
    """An interval for nobody would have no effect."""
    name = next(iter(settings))
    with pytest.raises(ConfigError, match=f"{name} has no effect without a sink: add csv or tensorboard"):
        load_config({"sinks": settings})


def test_a_sink_with_nothing_after_its_colon_is_refused(tmp_path: Path) -> None:
    """``csv:`` alone would look as if it were on."""
    path = tmp_path / "run.yml"
    path.write_text("sinks:\n  csv:\n")
    with pytest.raises(ConfigError, match=r"csv is empty: write 'csv: \{\}' for its defaults"):
        load_config(path)


def test_the_settings_survive_the_way_to_another_process(home: Path) -> None:
    """The aggregator beside the trainer gets the same settings as the trainer."""
    config = load_config({"sinks": {"csv": {}, "interval_steps": 5}})
    assert MonitorConfig.model_validate(config.model_dump(mode="json")) == config
    assert MonitorConfig.model_validate(load_config(None).model_dump(mode="json")) == load_config(None)
