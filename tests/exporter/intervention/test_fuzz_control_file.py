"""The control files' readers, on both sides, against random bytes and against good files that were spoilt."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainswitch.config import ControlConfig
from trainswitch.errors import CONTROL_FILE_REASONS, ControlFileError
from trainswitch.intervention.channel import ControlChannel
from trainswitch.intervention.commands import MAX_NUMBER, CommandOutcome
from trainswitch.intervention.control_file import CommandFile, read_commands, read_status
from trainswitch.intervention.signing import SigningKeys
from trainswitch_controller import runs
from trainswitch_controller.control_folder import ControlFolder

COMMANDS = {
    "schema": "trainswitch.commands/1",
    "run": "run-1",
    "epoch": 3,
    "commands": [
        {"id": f"c{seq}", "seq": seq, "action": action, "params": {}, "issued_at": 1.5, "expires_at": 9e9}
        for seq, action in ((1, "pause"), (2, "reduce_lr"))
    ],
}
RESULT = {"id": "c1", "seq": 1, "action": "pause", "result": "applied", "step": 4, "at": 2.0, "detail": "d"}
STATUS = {
    "schema": "trainswitch.status/1",
    "run": "run-1",
    "session": "s",
    "state": "running",
    "step": 4,
    "epoch": 3,
    "applied_seq": 1,
    "updated_at": 2.0,
    "pid": 1,
    "node": "n",
    "results": [RESULT],
    "checkpoints": [{"step": 1, "created_at": 1.0, "kind": "stable", "size_bytes": 5, "path": "/x"}],
}

KEYS = (
    *("schema", "run", "epoch", "commands", "seq", "id", "action", "params", "issued_at", "expires_at"),
    *("state", "step", "applied_seq", "results", "at", "detail", "updated_at", "checkpoints", "size_bytes"),
)

ODD = [
    *(
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1",
        "0",
        "9" * 30,
        "9" * 5000,
        "1e308",
        "2.5",
        "true",
        "null",
    ),
    *(
        '""',
        '"x"',
        '"\\ud800"',
        '"\\u0000"',
        f'"{"x" * 3000}"',
        "[]",
        "{}",
        "[[[[]]]]",
        "[" * 2000,
        '{"a":' * 2000,
    ),
]
"""What is written in place of a value, as JSON or nearly so."""

LIKELY = ["1", "2", "3", "1.5", "0.5", "1700000000.5", '"c1"', '"pause"', '"run-1"', "{}"]

values = st.sampled_from(LIKELY) | st.sampled_from(ODD) | st.integers().map(str) | st.floats().map(json.dumps)
fuzzing = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@st.composite
def spoilt(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """The text of `good` with values replaced, keys doubled, bytes changed, or its end cut off."""
    text = json.dumps(good)
    for _ in range(draw(st.integers(1, 3))):
        keys = [key for key in KEYS if f'"{key}": ' in text]
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        at = text.index(f'"{key}": ')
        value = draw(values)
        if draw(st.booleans()):
            text = f'{text[:at]}"{key}": {value}, {text[at:]}'  # a second value of the same key
        else:
            end = at + len(key) + 4
            _, length = json.JSONDecoder().raw_decode(_readable(text[end:]))
            text = f"{text[:end]}{value}{text[end + length :]}"
    data = text.encode()
    if draw(st.integers(0, 5)) == 5:
        data = data[: draw(st.integers(0, len(data)))]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2])) if data else 0):
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
    return data


def _readable(text: str) -> str:
    """Return `text` if it begins with JSON, and something that does otherwise."""
    try:
        json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return "0"
    return text


def sane(file: CommandFile) -> None:
    """Check what the rest of the trainer relies on."""
    assert file.run == "run-1"
    assert 1 <= file.epoch <= MAX_NUMBER
    for command in file.commands:
        assert 1 <= command.seq <= MAX_NUMBER
        assert 1 <= len(command.id) <= 128
        assert math.isfinite(command.issued_at)
        assert math.isfinite(command.expires_at)


@given(st.binary(max_size=200) | spoilt(COMMANDS))
@fuzzing
def test_a_trainer_takes_in_good_commands_or_none(tmp_path: Path, content: bytes) -> None:
    """Any content leaves sane pending commands, or is counted under a known reason."""
    folder = tmp_path / "control"
    errors: list[str] = []
    end = ControlChannel(ControlConfig(folder=folder), "run-1", node="n", on_error=errors.append)
    end.poll()
    path = folder / "run-1" / "commands.json"
    path.write_bytes(content)
    end.poll()
    assert set(errors) <= set(CONTROL_FILE_REASONS)
    assert 0 <= end._epoch <= MAX_NUMBER
    seqs = [command.seq for command in end.pending]
    assert seqs == sorted(set(seqs)), "one number, one command"
    for command in end.pending:
        sane(CommandFile(run="run-1", epoch=1, commands=(command,)))
        end.answer(
            CommandOutcome(
                id=command.id, seq=command.seq, action=command.action, result="refused", step=1, at=1.0
            )
        )
    end.refresh()
    assert end.pending == ()
    status = read_status(folder / "run-1" / "status.json", "run-1")  # what it wrote is valid still
    assert status is not None
    end.close("finished")
    for file in (path, folder / "run-1" / "status.json"):
        file.unlink()


@given(st.binary(max_size=200) | spoilt(STATUS))
@fuzzing
def test_a_controller_takes_a_good_status_or_none(tmp_path: Path, content: bytes) -> None:
    """The status has numbers that the journal can store, or is refused under a known reason."""
    folder = tmp_path / "run-1"
    folder.mkdir(exist_ok=True)
    folder.parent.chmod(0o755)
    (folder / "status.json").write_bytes(content)
    try:
        status = runs.load_status(ControlFolder(tmp_path), "run-1")
    except ControlFileError as error:
        if error.reason not in CONTROL_FILE_REASONS or not str(error).isprintable():
            pytest.fail(f"an error that cannot be counted or logged: {error!r}")
        return
    assert status is not None
    assert abs(status.step) <= MAX_NUMBER
    assert 0 <= runs.highest_seq(ControlFolder(tmp_path), "run-1") <= MAX_NUMBER
    status.model_dump_json().encode()


@given(
    st.binary(max_size=200)
    | spoilt(COMMANDS)
    | spoilt({**COMMANDS, "signature": {"key": "k", "hmac": "0" * 64}})
)
@fuzzing
def test_nothing_unsigned_is_ever_taken(tmp_path: Path, content: bytes) -> None:
    """With keys, no content that was not signed gives a file, and the only error is one of ours."""
    key, path = tmp_path / "key", tmp_path / "commands.json"
    if not key.exists():
        key.write_text("k" * 32)
        key.chmod(0o600)
    path.write_bytes(content)
    with pytest.raises(ControlFileError):
        _read_signed(path, SigningKeys(key))


def _read_signed(path: Path, keys: SigningKeys) -> object:
    return read_commands(path, "run-1", keys)


def test_the_search_finds_files_that_are_taken() -> None:
    """The spoilt files are not all refused at the first look; otherwise the tests above would test little."""
    taken = 0

    @given(spoilt(COMMANDS))
    @fuzzing
    def look(content: bytes) -> None:
        nonlocal taken
        with contextlib.suppress(ValueError, RecursionError):
            CommandFile.model_validate(json.loads(content))
            taken += 1

    look()
    assert taken > 10
