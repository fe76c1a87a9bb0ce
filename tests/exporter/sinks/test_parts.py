"""A log in parts: bounded, ordered, and written whole or not at all."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from trainswitch.sinks.parts import PARTS, Parts


def new(folder: Path, max_bytes: int = 8000) -> Parts:
    """Parts ``log.<number>.txt`` of which each begins with one line."""
    return Parts(folder, "log.", ".txt", b"header\n", max_bytes)


def test_nothing_is_written_before_there_is_something_to_write(tmp_path: Path) -> None:
    """A sink that nobody feeds leaves no empty file."""
    assert new(tmp_path / "log").paths() == []
    assert not (tmp_path / "log").exists()


def test_the_newest_lines_stay_and_the_space_is_bounded(tmp_path: Path) -> None:
    """However much is appended, the parts take no more than was allowed; what is left has no gap."""
    parts = new(tmp_path)
    for number in range(5000):
        parts.append(b"%06d\n" % number)
        assert sum(path.stat().st_size for path in parts.paths()) <= 8000
    lines = [path.read_bytes().splitlines() for path in parts.paths()]
    assert all(part[0] == b"header" for part in lines)
    kept = [int(line) for part in lines for line in part[1:]]
    assert kept == list(range(kept[0], 5000))
    assert len(kept) * 7 > 8000 * (PARTS - 2) // PARTS


def test_a_new_start_comes_after_the_old_parts_even_if_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of the names is the order of the writing."""
    new(tmp_path).append(b"first\n")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 86400)
    new(tmp_path).append(b"second\n")
    assert [path.read_bytes() for path in new(tmp_path).paths()] == [b"header\nfirst\n", b"header\nsecond\n"]


def test_foreign_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    """Only files of the log's own pattern are ever removed."""
    foreign = tmp_path / "log.txt"
    foreign.write_bytes(b"x" * 100_000)
    parts = new(tmp_path)
    for _ in range(3000):
        parts.append(b"a line\n")
    assert foreign.stat().st_size == 100_000


def test_a_failed_append_leaves_the_part_as_it_was(tmp_path: Path) -> None:
    """A write that stops half way, here at a limit on file sizes, is taken back."""
    parts = new(tmp_path, 80_000)
    parts.append(b"a line\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            parts.append(b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (path,) = parts.paths()
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"header\na line\n"


def test_a_part_that_was_removed_is_an_error_and_not_a_file_without_a_header(tmp_path: Path) -> None:
    """Whoever tidies up meanwhile is noticed; the owner starts again."""
    parts = new(tmp_path)
    parts.append(b"a line\n")
    parts.paths()[0].unlink()
    with pytest.raises(FileNotFoundError):
        parts.append(b"another\n")
    assert parts.paths() == []
