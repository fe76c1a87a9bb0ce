"""The trainer's end of the control folder: bad files are reported once, ignored, and lose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainswitch.config import ControlConfig
from trainswitch.intervention.channel import ControlChannel
from trainswitch.intervention.commands import CommandOutcome
from trainswitch.intervention.control_file import CheckpointEntry, read_status

RUN = "run-1"


class Side:
    """A channel that is polled by the test itself, and what it reported."""

    def __init__(self, folder: Path, run: str = RUN) -> None:
        self.folder = folder
        self.errors: list[str] = []
        self.channel = ControlChannel(
            ControlConfig(folder=folder), run, node="n", on_error=self.errors.append
        )

    def ids(self) -> list[str]:
        """Poll, and return the ids of the pending commands."""
        self.channel.poll()
        return [command.id for command in self.channel.pending]

    def answer(self, seq: int, result: str = "applied") -> None:
        """Answer command `seq`."""
        self.channel.answer(
            CommandOutcome(id=f"c{seq}", seq=seq, action="pause", result=result, step=1, at=time.time())
        )

    def status(self) -> Any:
        """What status.json says."""
        return read_status(self.folder / RUN / "status.json", RUN)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    """A channel in a folder of its own."""
    made = Side(tmp_path)
    yield made
    made.channel.close("finished")


def write(folder: Path, *seqs: int, epoch: int = 1, run: str = RUN, **change: Any) -> Path:
    """Write commands.json as a controller does."""
    now = time.time()
    document = {
        "schema": "trainswitch.commands/1",
        "run": run,
        "epoch": epoch,
        "commands": [
            {
                "id": f"c{seq}",
                "seq": seq,
                "action": "pause",
                "params": {},
                "reason": "",
                "issued_at": now,
                "expires_at": now + 60,
            }
            for seq in seqs
        ],
        **change,
    }
    path = folder / RUN / "commands.json"
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document))
    temporary.replace(path)
    return path


def test_commands_come_in_order_and_once(side: Side) -> None:
    """Pending commands are sorted by seq; an answered one does not come back."""
    write(side.folder, 3, 1, 2)
    assert side.ids() == ["c1", "c2", "c3"]
    side.answer(1)
    assert [command.id for command in side.channel.pending] == ["c2", "c3"]
    write(side.folder, 1, 2, 3)
    assert side.ids() == ["c2", "c3"]
    assert side.status().applied_seq == 1
    assert side.status().results[0].id == "c1"


def test_an_answer_outlives_the_trainer(tmp_path: Path) -> None:
    """After a restart the same commands.json holds nothing to carry out."""
    first = Side(tmp_path)
    write(tmp_path, 1, 2)
    assert first.ids() == ["c1", "c2"]
    first.answer(1)
    first.channel.close("crashed")
    second = Side(tmp_path)
    assert second.ids() == ["c2"]
    second.channel.refresh()
    assert [result.id for result in second.status().results] == ["c1"]
    second.channel.close("finished")


@pytest.mark.parametrize(
    ("reason", "content"),
    [
        ("torn", b'{"schema": "trainswitch.commands/1", "run"'),
        ("torn", b""),
        ("torn", b"\xff\xfe"),
        ("foreign", b"[1, 2]"),
        ("foreign", b'{"schema": "something/else", "run": "run-1"}'),
        ("foreign", b'{"schema": "trainswitch.commands/1", "run": "other", "epoch": 1}'),
        ("foreign", b'{"schema": "trainswitch.commands/1", "run": "run-1", "epoch": "x"}'),
        ("newer", b'{"schema": "trainswitch.commands/2", "run": "run-1"}'),
        ("too_large", b'{"a": "' + b"x" * 1_000_001 + b'"}'),
    ],
)
def test_a_bad_file_is_reported_once_and_ignored(
    side: Side, reason: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is in the file, it is counted once, and a good file afterwards is taken."""
    path = side.folder / RUN / "commands.json"
    side.channel.poll()
    path.write_bytes(content)
    for _ in range(3):
        assert side.ids() == []
    assert side.errors == [reason]
    assert str(path) in caplog.text
    write(side.folder, 1)
    assert side.ids() == ["c1"]


def test_a_bad_file_does_not_take_pending_commands_away(side: Side) -> None:
    """Commands that were read before the file was torn stay pending."""
    path = write(side.folder, 1)
    assert side.ids() == ["c1"]
    path.write_bytes(b"{")
    assert side.ids() == ["c1"]


def test_an_unreadable_file_is_reported(side: Side) -> None:
    """A folder in the file's place is an operating-system error, not a crash."""
    side.channel.poll()
    (side.folder / RUN / "commands.json").mkdir()
    assert side.ids() == []
    assert side.errors == ["unreadable"]


def test_an_older_controller_is_fenced_off(side: Side) -> None:
    """Once a higher epoch was seen, a file of a lower one is ignored."""
    write(side.folder, 1, epoch=7)
    assert side.ids() == ["c1"]
    write(side.folder, 1, 2, epoch=6)
    assert side.ids() == ["c1"]
    assert side.errors == ["stale"]
    write(side.folder, 1, 2, epoch=8)
    assert side.ids() == ["c1", "c2"]


def test_a_second_trainer_of_the_same_name_is_not_controlled(tmp_path: Path) -> None:
    """The second one says so, leaves the files alone, and takes over when the first ends."""
    first, second = Side(tmp_path), Side(tmp_path)
    write(tmp_path, 1)
    assert first.ids() == ["c1"]
    assert second.ids() == []
    assert second.errors == ["foreign"]
    first.channel.close("finished")
    assert second.ids() == ["c1"]
    second.channel.close("finished")


def test_a_damaged_status_is_set_aside_and_nothing_is_repeated(tmp_path: Path) -> None:
    """Without the record of what was answered, commands issued before are not carried out."""
    path = write(tmp_path, 1)
    status = path.with_name("status.json")
    status.write_text('{"schema": "trainswitch.status/1", "run": "run-1", "applied')
    side = Side(tmp_path)
    assert side.ids() == ["c1"]
    assert not side.channel.trusted(side.channel.pending[0])
    assert side.errors == ["torn"]
    assert list(path.parent.glob("status.json.damaged-*"))
    write(tmp_path, 2)
    side.channel.poll()
    assert side.channel.trusted(side.channel.pending[-1])
    side.channel.close("finished")


def test_a_newer_status_is_left_alone(tmp_path: Path) -> None:
    """A status file of a newer trainswitch is neither overwritten nor misread."""
    write(tmp_path, 1)
    status = tmp_path / RUN / "status.json"
    status.write_text('{"schema": "trainswitch.status/9", "run": "run-1"}')
    side = Side(tmp_path)
    assert side.ids() == []
    side.channel.refresh()
    assert "status/9" in status.read_text()
    assert side.errors == ["newer"]
    side.channel.close("finished")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounts a small tmpfs, which only root may; CI runs as root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_keeps_the_answer_until_there_is_room(small_disk: Path) -> None:
    """The command is carried out and stays answered; status.json says so once there is room again."""
    side = Side(small_disk)
    write(small_disk, 1)
    side.channel.poll()
    side.channel.refresh()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="space"):
        filler.write_bytes(b"x" * 1_000_000)
    side.answer(1)
    assert side.errors == ["write"]
    assert side.ids() == []
    assert side.status().applied_seq == 0
    filler.unlink()
    side.channel.refresh()
    assert side.status().applied_seq == 1
    side.channel.close("finished")


def test_a_read_only_folder_stops_nothing(small_disk: Path) -> None:
    """While the folder is read-only the answer is kept; afterwards it is written."""
    side = Side(small_disk)
    write(small_disk, 1)
    assert side.ids() == ["c1"]
    subprocess.run(["mount", "--bind", small_disk, small_disk], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", small_disk], check=True)
    side.answer(1)
    assert side.errors == ["write"]
    subprocess.run(["umount", small_disk], check=True)
    side.channel.refresh()
    assert side.status().applied_seq == 1
    side.channel.close("finished")


def test_a_folder_that_cannot_be_used_at_first_is_taken_later(tmp_path: Path) -> None:
    """A file in the folder's place is reported once; when it is gone, commands are read."""
    blocker = tmp_path / RUN
    blocker.write_text("in the way")
    side = Side(tmp_path)
    assert side.ids() == []
    assert side.ids() == []
    assert side.errors == ["write"]
    blocker.unlink()
    write(tmp_path, 1)
    assert side.ids() == ["c1"]
    side.channel.close("finished")


def test_a_folder_that_disappears_and_returns_loses_no_answer(side: Side) -> None:
    """Answers given before and while the folder is gone are in the new status.json; nothing is repeated."""
    path = write(side.folder, 1, 2)
    assert side.ids() == ["c1", "c2"]
    side.answer(1)
    for file in list(path.parent.iterdir()):
        file.unlink()
    path.parent.rmdir()
    side.answer(2)
    assert "write" in side.errors
    write(side.folder, 1, 2, 3)
    assert side.ids() == ["c3"]
    side.channel.refresh()
    assert [result.id for result in side.status().results] == ["c1", "c2"]


def test_only_the_newest_results_are_kept(side: Side) -> None:
    """status.json does not grow without bound."""
    side.channel.poll()
    for seq in range(1, 301):
        side.answer(seq)
    results = side.status().results
    assert len(results) == 200
    assert results[-1].seq == 300
    assert side.status().applied_seq == 300


def test_the_answers_are_had_while_status_json_is_written(side: Side) -> None:
    """A checkpoint's meta needs them, and training must not wait for a control folder that hangs."""
    write(side.folder, 1)
    side.ids()
    side.answer(1)
    found: list[Any] = []
    with side.channel._lock:  # as `refresh` holds it while it writes
        reader = threading.Thread(target=lambda: found.extend(side.channel.answers()), daemon=True)
        reader.start()
        reader.join(10.0)
        assert [answer["id"] for answer in found] == ["c1"]


def test_a_folder_that_turns_inaccessible_stops_nothing(tmp_path: Path) -> None:
    """Not even what lies there can be asked for; the answer is kept, and written when it can be."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else for a while")
    side = Side(tmp_path)
    write(side.folder, 1)
    side.ids()
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        side.answer(1)
    finally:
        os.seteuid(0)
    assert side.errors == ["write"]
    assert side.ids() == []
    side.channel.refresh()
    assert side.status().applied_seq == 1
    side.channel.close("finished")


def test_an_arrival_is_told_before_it_can_be_answered(side: Side) -> None:
    """Told afterwards, it would wake every wait of a pause at once, until the next answer."""
    told: list[bool] = []

    class Arrived(threading.Event):
        def set(self) -> None:
            told.append(side.channel._lock.locked())
            super().set()

    side.channel._arrived = Arrived()
    write(side.folder, 1)
    assert side.ids() == ["c1"]
    assert told == [True]


def test_a_mistake_of_a_callback_does_not_end_the_control(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread goes on looking, takes the next command, and says once what went wrong."""
    troubles: list[str] = []
    over = threading.Event()

    def checkpoints() -> tuple[CheckpointEntry, ...]:
        if troubles:
            trouble = troubles.pop()
            if not troubles:
                over.set()
            raise RuntimeError(trouble)
        return ()

    config = ControlConfig(folder=tmp_path, poll_interval_seconds=0.05, status_interval_seconds=0.1)
    channel = ControlChannel(config, RUN, node="n", checkpoints=checkpoints)
    channel.open()
    try:
        troubles.extend(["no list today"] * 3)
        assert over.wait(30.0)
        write(tmp_path, 1)
        channel.wait(30.0)
        assert [command.id for command in channel.pending] == ["c1"]
    finally:
        channel.close("finished")
    assert sum("it is tried again" in record.message for record in caplog.records) == 1
