"""The control folder as the controller sees it: whose files it writes beside, signs, and believes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainswitch.errors import ControlFileError, SecretFileError
from trainswitch.intervention.commands import CommandOutcome
from trainswitch.intervention.control_file import StatusFile, read_commands, status_path, write_control_file
from trainswitch.intervention.signing import SigningKeys

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def key_file(home: Any) -> Path:
    """A file with a signing key."""
    path: Path = home.folder / "signing.key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


def answer(home: Any, command: dict[str, Any], keys: SigningKeys | None) -> None:
    """Say, as the trainer or as somebody else, that `command` was applied."""
    outcome = CommandOutcome(
        id=command["id"],
        seq=command["seq"],
        action=command["action"],
        result="applied",
        step=5,
        at=time.time(),
    )
    status = StatusFile(
        run="demo", session="s", state="running", step=5, applied_seq=command["seq"], results=(outcome,),
        updated_at=time.time(), pid=1, node="here",
    )  # fmt: skip
    write_control_file(status_path(home.control, "demo"), status, keys)


def test_commands_are_signed_and_only_signed_answers_believed(
    home: Any, key_file: Path, make_loop: Callable[..., Any]
) -> None:
    """A forged answer is counted and changes nothing, neither in the journal nor in what people see."""
    (home.control / "demo").mkdir(parents=True)
    keys = SigningKeys(key_file)
    loop = make_loop(signing_key_file=key_file)
    assert loop.fire() == "acted"
    loop.tick()
    path = home.control / "demo" / "commands.json"
    found = read_commands(path, "demo", keys)
    assert found is not None
    [command] = loop.commands()
    assert [one.id for one in found.commands] == [command["id"]]

    answer(home, command, None)
    loop.tick()
    assert loop.states() == [("pause", "written")]
    assert loop.metric("control_file_errors_total", file="status", reason="signature") == 1
    answer(home, command, keys)
    loop.tick()
    assert loop.states() == [("pause", "applied")]


def test_a_forged_number_does_not_make_the_controller_count_on(
    home: Any, key_file: Path, make_loop: Callable[..., Any]
) -> None:
    """An unsigned status.json with a huge applied_seq would otherwise use all numbers up."""
    (home.control / "demo").mkdir(parents=True)
    loop = make_loop(signing_key_file=key_file)
    answer(home, {"id": "x", "seq": 2**53 - 1, "action": "pause"}, None)
    loop.fire()
    assert [command["seq"] for command in loop.commands()] == [1]


def test_a_forged_file_of_commands_is_replaced(
    home: Any, key_file: Path, make_loop: Callable[..., Any]
) -> None:
    """Somebody who replaces commands.json hides the commands for one look at most."""
    (home.control / "demo").mkdir(parents=True)
    keys = SigningKeys(key_file)
    loop = make_loop(signing_key_file=key_file)
    loop.fire()
    loop.tick()
    path = home.control / "demo" / "commands.json"
    path.write_text(path.read_text().replace('"pause"', '"stop"'))
    with pytest.raises(ControlFileError):
        read_commands(path, "demo", keys)
    loop.tick()
    found = read_commands(path, "demo", keys)
    assert found is not None
    assert [one.action for one in found.commands] == ["pause"]
    assert loop.metric("control_file_errors_total", file="commands", reason="signature") == 1


def test_a_key_that_is_not_usable_is_refused_at_the_start(
    home: Any, key_file: Path, make_loop: Callable[..., Any]
) -> None:
    """In one sentence that names the file; later, commands wait until it has been mended."""
    key_file.chmod(0o644)
    with pytest.raises(SecretFileError, match=r"signing\.key has mode 0644"):
        make_loop(signing_key_file=key_file)
    key_file.chmod(0o600)
    (home.control / "demo").mkdir(parents=True)
    loop = make_loop(signing_key_file=key_file)
    key_file.chmod(0o644)
    loop.fire()
    loop.tick()
    assert loop.states() == [("pause", "pending")]
    assert (loop.metric("write_failures_total", reason="signature") or 0) >= 1
    key_file.chmod(0o600)
    loop.tick()
    assert loop.states() == [("pause", "written")]


def test_nothing_is_written_where_everybody_can_write(home: Any, make_loop: Callable[..., Any]) -> None:
    """A run folder that everybody can write gets no command until it has been mended; the problem is said."""
    folder = home.control / "demo"
    folder.mkdir()
    folder.chmod(0o777)
    loop = make_loop()
    loop.fire()
    loop.tick()
    assert loop.states() == [("pause", "pending")]
    assert not (folder / "commands.json").exists()
    assert (loop.metric("write_failures_total", reason="permissions") or 0) >= 1
    folder.chmod(0o770)
    loop.tick()
    assert loop.states() == [("pause", "written")]


def test_a_run_folder_that_is_a_link_gets_nothing(
    home: Any, tmp_path: Path, make_loop: Callable[..., Any]
) -> None:
    """Whoever may make run folders cannot have the controller write elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (home.control / "demo").symlink_to(tmp_path / "elsewhere")
    loop = make_loop()
    loop.fire()
    loop.tick()
    assert loop.states() == [("pause", "pending")]
    assert list((tmp_path / "elsewhere").iterdir()) == []
