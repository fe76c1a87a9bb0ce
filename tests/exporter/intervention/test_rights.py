"""Whose control files are believed: folders and files that others could have written are refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from trainswitch.config import ControlConfig
from trainswitch.errors import ControlFileError
from trainswitch.files import write_atomically
from trainswitch.intervention.channel import ControlChannel
from trainswitch.intervention.control_file import CommandFile, read_commands, write_control_file
from trainswitch.intervention.rights import check_folder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users; CI runs as root")

USER, STRANGER, GROUP = 12001, 12002, 12003

AS_USER = f"""
import os, sys
from pathlib import Path
from trainswitch.errors import ControlFileError
from trainswitch.intervention.control_file import read_commands
from trainswitch.intervention.rights import check_folder
os.setgroups([{GROUP}])
os.setgid({USER})
os.setuid({USER})
folder = Path(sys.argv[1])
try:
    check_folder(folder, signed=False)
    read_commands(folder / "commands.json", "run-1")
except ControlFileError as error:
    print(error.reason, error)
else:
    print("believed")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A run's folder with a file of commands, as it should be, where every user gets to."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        Path(name).chmod(0o755)
        yield _make_folder(Path(name))


def _make_folder(below: Path) -> Path:
    folder = below / "control" / "run-1"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o755)
    folder.chmod(0o770)
    write_control_file(folder / "commands.json", CommandFile(run="run-1", epoch=1))
    return folder


def refusal(use: Callable[[], object]) -> str:
    """Return the sentence of the refusal that `use` meets."""
    with pytest.raises(ControlFileError) as refused:
        use()
    assert refused.value.reason == "permissions"
    return str(refused.value)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o772])
@pytest.mark.parametrize("above", [False, True])
def test_a_folder_that_everybody_can_write_is_refused(mode: int, above: bool, folder: Path) -> None:
    """The run's folder and the one above it; the sentence says how to mend it. Signed files need it not."""
    spoiled = folder.parent if above else folder
    spoiled.chmod(mode)
    sentence = refusal(lambda: check_folder(folder, signed=False))
    assert f"run 'chmod o-w {spoiled}', or sign the control files" in sentence
    check_folder(folder, signed=True)


def test_a_link_is_never_followed(folder: Path, tmp_path: Path) -> None:
    """Neither in place of the folder, signed or not, nor of a file, nor of the temporary file of a writer."""
    link = folder.with_name("run-2")
    link.symlink_to(folder)
    for signed in (False, True):
        assert "is a symbolic link" in refusal(partial(check_folder, link, signed=signed))
    other = folder / "other.json"
    (folder / "commands.json").rename(other)
    (folder / "commands.json").symlink_to(other)
    with pytest.raises(ControlFileError, match="Too many levels of symbolic links"):
        read_commands(folder / "commands.json", "run-1")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / f".commands.json.{os.getpid()}.tmp").symlink_to(victim)
    write_atomically(folder / "commands.json", b"new")
    assert victim.read_text() == "precious"
    assert (folder / "commands.json").read_bytes() == b"new"


def test_a_link_that_comes_at_the_last_moment_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may put it there between the writer's look and its opening: then nothing is written."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(tmp_path / "victim")
    monkeypatch.setattr(Path, "unlink", lambda *_args, **_options: None)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_pipe_holds_nobody_up(folder: Path) -> None:
    """Opening a named pipe for reading would wait for a writer for ever."""
    (folder / "commands.json").unlink()
    os.mkfifo(folder / "commands.json")
    with pytest.raises(ControlFileError, match="is not a file"):
        read_commands(folder / "commands.json", "run-1")


def test_a_file_that_everybody_can_write_is_refused(folder: Path) -> None:
    """Its folder may be in order; then only this file is refused."""
    (folder / "commands.json").chmod(0o646)
    assert "run 'chmod o-w" in refusal(lambda: read_commands(folder / "commands.json", "run-1"))


@needs_root
@pytest.mark.parametrize(
    ("folder_owner", "mode", "file_owner", "said"),
    [
        ((USER, USER), 0o700, (USER, USER), "believed"),
        ((0, 0), 0o755, (0, 0), "believed"),
        ((STRANGER, GROUP), 0o770, (STRANGER, STRANGER), "believed"),
        ((USER, USER), 0o700, (0, 0), "believed"),
        ((STRANGER, STRANGER), 0o755, (USER, USER), "permissions"),
        ((STRANGER, GROUP), 0o755, (USER, USER), "permissions"),
        ((STRANGER, STRANGER), 0o775, (USER, USER), "permissions"),
        ((USER, USER), 0o755, (STRANGER, STRANGER), "permissions"),
    ],
)
def test_owners(
    folder_owner: tuple[int, int], mode: int, file_owner: tuple[int, int], said: str, folder: Path
) -> None:
    """A user who is not root believes itself, root and those who share a group with it; nobody else."""
    (folder / "commands.json").chmod(0o644)
    os.chown(folder / "commands.json", *file_owner)
    os.chown(folder, *folder_owner)
    folder.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, folder],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.partition(" ")[0].strip() == said


def test_a_trainer_trains_on_without_being_controlled(folder: Path) -> None:
    """The refusal is counted and said once; when the folder has been mended, commands are read."""
    folder.chmod(0o777)
    errors: list[str] = []
    end = ControlChannel(ControlConfig(folder=folder.parent), "run-1", node="here", on_error=errors.append)
    end.poll()
    end.poll()
    end.refresh()
    assert errors == ["permissions"]
    assert not (folder / "status.json").exists()
    folder.chmod(0o770)
    end.poll()
    end.refresh()
    assert (folder / "status.json").exists()
    end.close("finished")


def test_a_new_folder_is_for_owner_and_group(tmp_path: Path) -> None:
    """Whatever the umask: a trainer never makes a folder that it would refuse."""
    before = os.umask(0)
    try:
        (tmp_path / "control").mkdir(mode=0o755)
        end = ControlChannel(ControlConfig(folder=tmp_path / "control"), "run-1", node="here")
        end.poll()
        end.close("finished")
    finally:
        os.umask(before)
    assert (tmp_path / "control" / "run-1").stat().st_mode & 0o777 == 0o770
