"""The ring between the training loop and the aggregator."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainswitch.errors import RingError
from trainswitch.processes import start_ticks
from trainswitch.recording.records import VALUES, Kind, Value
from trainswitch.recording.ring import RingReader, StepRing, remove_abandoned_rings

META = {"run": "a", "rank": 0}


def test_records_arrive_once_and_in_order(tmp_path: Path) -> None:
    """Each record is read exactly once, in the order of writing, with its values, label and step."""
    ring = StepRing.create(META, 64, tmp_path)
    reader = ring.reader()
    for step in range(10):
        ring.append(Kind.STEP, step, (float(step), math.nan), label="x")
    records = reader.drain()
    assert [record.step for record in records] == list(range(10))
    assert records[3].get(Value.LOSS) == 3.0
    assert math.isnan(records[3].values[1])
    assert records[3].get(Value.SAMPLES) is None
    assert records[3].label == "x"
    assert reader.drain() == []
    ring.close()


@given(st.lists(st.integers(1, 50), max_size=20))
@settings(max_examples=50, deadline=None)
def test_every_record_is_read_or_counted_as_dropped(bursts: list[int]) -> None:
    """Whatever the bursts, records read and records dropped add up to records written."""
    ring = StepRing.private(META, 64)
    reader = ring.reader()
    read = written = 0
    for burst in bursts:
        for _ in range(burst):
            written += 1
            ring.append(Kind.STEP, written)
        if burst % 3:
            read += len(reader.drain())
    read += len(reader.drain())
    assert read + reader.dropped == written


def test_an_overrun_keeps_the_newest(tmp_path: Path) -> None:
    """A reader that is a whole ring behind gets the newest records, and the rest is counted."""
    ring = StepRing.create(META, 64, tmp_path)
    reader = ring.reader()
    for step in range(100):
        ring.append(Kind.STEP, step)
    assert [record.step for record in reader.drain()] == list(range(36, 100))
    assert reader.dropped == 36
    ring.close()


def test_another_process_reads_the_black_box_of_a_killed_one(tmp_path: Path) -> None:
    """After kill -9 the ring can still be read, and the next start removes it."""
    script = (
        "import sys, os, signal; from pathlib import Path; from trainswitch.recording.ring import StepRing\n"
        "r = StepRing.create({'run': 'dead', 'rank': 0}, 64, Path(sys.argv[1]))\n"
        "r.append(1, 41, (1.5,)); r.append(1, 42, (2.5,))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.glob("trainswitch.dead.0.*.ring")
    reader = RingReader.open(path)
    assert reader.meta["run"] == "dead"
    assert [(record.step, record.values[0]) for record in reader.drain()] == [(41, 1.5), (42, 2.5)]
    assert remove_abandoned_rings(tmp_path) == [path]


def test_a_live_ring_is_left_alone(tmp_path: Path) -> None:
    """Cleaning up never removes the ring of a writer that lives."""
    ring = StepRing.create(META, 64, tmp_path)
    assert remove_abandoned_rings(tmp_path) == []
    assert ring.path is not None
    assert ring.path.exists()
    ring.close()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_remove_the_parents_ring(tmp_path: Path) -> None:
    """close() in a forked child, such as a data loader's worker, leaves the file to its owner."""
    ring = StepRing.create(META, 64, tmp_path)
    pid = os.fork()
    if pid == 0:
        ring.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert ring.path is not None
    assert ring.path.exists()
    ring.close()


def test_no_room_is_one_sentence(tmp_path: Path) -> None:
    """A folder that cannot hold the ring gives an error that names the way out, and leaves nothing."""
    with pytest.raises(RingError, match="lower ring_records"):
        StepRing.create(META, 64, tmp_path / "missing")


@pytest.mark.parametrize("content", [b"", b"x" * 300, b"TSWRING2" + b"\0" * 100_000])
def test_a_file_that_is_no_ring_is_refused(tmp_path: Path, content: bytes) -> None:
    """Empty, short and foreign files are RingErrors."""
    path = tmp_path / "trainswitch.a.0.1.1.ring"
    path.write_bytes(content)
    with pytest.raises(RingError):
        RingReader.open(path)


def test_a_long_label_is_cut_and_too_many_values_are_an_error() -> None:
    """A label has a fixed place; values beyond the record's places are a programming error."""
    ring = StepRing.private(META, 64)
    ring.append(Kind.STATE, 0, label="ä" * 100)
    assert ring.reader().drain()[0].label == "ä" * 32
    with pytest.raises(Exception, match="pack"):
        ring.append(Kind.STEP, 0, (0.0,) * (VALUES + 1))


def test_a_reader_goes_on_where_the_one_before_it_had_been_scraped(tmp_path: Path) -> None:
    """replay() gives what was marked, drain() what was not: nothing comes twice, and losses are counted."""
    ring = StepRing.create(META, 64, tmp_path)
    first = RingReader.adopt(ring.descriptor)
    for step in range(1, 41):
        ring.append(Kind.STEP, step)
        if step == 30:
            first.drain()
            first.mark_counted()
    first.drain()
    second = RingReader.adopt(ring.descriptor)
    assert [record.step for record in second.replay()] == list(range(1, 31))
    assert [record.step for record in second.drain()] == list(range(31, 41))
    assert second.dropped == 0
    for step in range(41, 111):
        ring.append(Kind.STEP, step)
    third = RingReader.adopt(ring.descriptor)
    assert third.replay() == []
    assert [record.step for record in third.drain()] == list(range(47, 111))
    assert third.dropped == 16
    ring.close()


def test_the_end_is_said(tmp_path: Path) -> None:
    """A reader in another process can tell an orderly end."""
    ring = StepRing.create(META, 64, tmp_path)
    assert ring.path is not None
    reader = RingReader.open(ring.path)
    before = reader.ended
    ring.end()
    assert (before, reader.ended) == (False, True)
    ring.close()


def test_whoever_inherited_the_ring_keeps_it(tmp_path: Path) -> None:
    """The lock is held until writer and sidecar are gone; only the same run's next start takes the ring."""
    meta = {**META, "pid": os.getpid(), "pid_started": start_ticks(os.getpid())}
    ring = StepRing.create(meta, 64, tmp_path)
    path = ring.path
    assert path is not None
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[ring.descriptor]
    ) as sidecar:
        ring.end()
        ring.leave()
        assert remove_abandoned_rings(tmp_path) == []
        StepRing.create({**meta, "rank": 1}, 64, tmp_path).close()
        assert path.exists()
        threading.Timer(0.2, sidecar.kill).start()
        StepRing.create(meta, 64, tmp_path).close()
        assert sidecar.wait(10) == -signal.SIGKILL  # the new ring waited for the lock
    assert list(tmp_path.iterdir()) == []


def test_two_living_writers_of_one_run_leave_each_other_alone(tmp_path: Path) -> None:
    """A start takes nothing from a trainer that lives and has not ended."""
    meta = {**META, "pid": os.getpid(), "pid_started": start_ticks(os.getpid())}
    first = StepRing.create(meta, 64, tmp_path)
    second = StepRing.create(meta, 64, tmp_path)
    assert first.path is not None
    assert first.path.exists()
    first.close()
    second.close()


def test_a_ring_left_half_made_is_removed_after_a_while(tmp_path: Path) -> None:
    """A start that was killed before its ring had a name leaves nothing for good."""
    old, new = tmp_path / "trainswitch.a.0.1.1.new", tmp_path / "trainswitch.a.0.1.2.new"
    for path in (old, new):
        path.touch()
    os.utime(old, (0, 0))
    assert remove_abandoned_rings(tmp_path) == [old]
