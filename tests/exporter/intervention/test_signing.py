"""Signatures of the control files: what they cover, whose they may be, and how keys are replaced."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainswitch.config import ControlConfig
from trainswitch.errors import ControlFileError, SecretFileError
from trainswitch.intervention.channel import ControlChannel
from trainswitch.intervention.commands import Command, CommandOutcome
from trainswitch.intervention.control_file import (
    CommandFile,
    StatusFile,
    read_commands,
    read_status,
    write_control_file,
)
from trainswitch.intervention.signing import SigningKeys, key_id

PAGE = Path(__file__).parents[3] / "docs" / "control-protocol.md"
KEY = "0123456789abcdef0123456789abcdef"
NEXT = "fedcba9876543210fedcba9876543210"


@pytest.fixture
def keys_at(tmp_path: Path) -> Callable[..., SigningKeys]:
    """Write a file of keys and return it; the same name replaces the file."""

    def make(*keys: str, name: str = "keys") -> SigningKeys:
        path = tmp_path / name
        path.write_text("\n".join(keys))
        path.chmod(0o600)
        return SigningKeys(path)

    return make


def order(seq: int = 1, epoch: int = 3, run: str = "run-1", **changes: Any) -> CommandFile:
    """A file with one pause."""
    at = time.time()
    values: dict[str, Any] = {
        "id": f"c{seq}", "seq": seq, "action": "pause", "issued_at": at, "expires_at": at + 600, **changes
    }  # fmt: skip
    return CommandFile(run=run, epoch=epoch, commands=(Command(**values),))


def reason_of(read: Callable[[], object]) -> tuple[str, str]:
    """Return reason and sentence of the error that `read` raises."""
    with pytest.raises(ControlFileError) as refused:
        read()
    return refused.value.reason, str(refused.value)


def test_what_was_signed_is_read(tmp_path: Path, keys_at: Callable[..., SigningKeys]) -> None:
    """Both files survive signing, beyond ASCII as well; readers without keys ignore signatures."""
    keys, path = keys_at(KEY), tmp_path / "file.json"
    commands = order(reason='loss is "∞"}')
    write_control_file(path, commands, keys)
    assert read_commands(path, "run-1", keys) == commands
    assert read_commands(path, "run-1") == commands
    tricky = CommandOutcome(id="c", seq=1, action="pause", result="applied", step=1, at=1.0, detail="0" * 64)
    values = {"session": "s", "state": "running", "step": 1, "updated_at": 1.0, "pid": 1, "node": "n"}
    status = StatusFile.model_validate({"run": "run-1", "results": (tricky,), **values})
    write_control_file(path, status, keys)
    assert read_status(path, "run-1", keys) == status


def test_every_byte_is_covered(tmp_path: Path, keys_at: Callable[..., SigningKeys]) -> None:
    """No single changed byte of a signed file is accepted, and none that is added or left out."""
    keys, path = keys_at(KEY), tmp_path / "file.json"
    write_control_file(path, order(), keys)
    good = path.read_bytes()
    changed = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good))]
    for data in [
        *changed,
        good + b" ",
        good[1:],
        good.replace(b"pause", b"resume"),
        good.replace(b'"run-1"', b'"run-2"'),
    ]:
        path.write_bytes(data)
        for run in ("run-1", "run-2"):
            with pytest.raises(ControlFileError):
                read_commands(path, run, keys)


def test_the_name_of_the_key_is_covered(tmp_path: Path, keys_at: Callable[..., SigningKeys]) -> None:
    """Content is checked before it is understood: even a foreign schema is first of all not signed."""
    keys, path = keys_at(KEY), tmp_path / "file.json"
    write_control_file(path, order(), keys)
    path.write_text(path.read_text().replace(key_id(KEY.encode()), "00000000"))
    reason, sentence = reason_of(lambda: read_commands(path, "run-1", keys))
    assert reason == "signature"
    assert f"by key '00000000', where {key_id(KEY.encode())} belongs" in sentence
    path.write_text('{"schema": "trainswitch.commands/9"}')
    assert reason_of(lambda: read_commands(path, "run-1", keys))[0] == "signature"


@pytest.mark.parametrize(
    "signature",
    [
        None,
        [],
        "x",
        {},
        {"hmac": None},
        {"hmac": "0" * 64},
        {"hmac": "z" * 64},
        {"hmac": 10**63},
        {"hmac": {}},
    ],
)
def test_anything_else_is_no_signature(
    signature: Any, tmp_path: Path, keys_at: Callable[..., SigningKeys]
) -> None:
    """A file that is not signed, or says so in an odd way, is refused like one with a wrong signature."""
    path = tmp_path / "file.json"
    document = json.loads(order().model_dump_json(by_alias=True))
    path.write_text(json.dumps({**document, "signature": signature}))
    assert reason_of(lambda: read_commands(path, "run-1", keys_at(KEY)))[0] == "signature"


def test_keys_are_replaced_without_a_gap(tmp_path: Path, keys_at: Callable[..., SigningKeys]) -> None:
    """Old and new key are both believed while each end has both; then the old one ends, without a restart."""
    path = tmp_path / "file.json"
    writer, reader = keys_at(KEY, name="writer"), keys_at(KEY, name="reader")

    def readable() -> bool:
        write_control_file(path, order(), writer)
        try:
            return read_commands(path, "run-1", reader) is not None
        except ControlFileError:
            return False

    steps = [("reader", [KEY, NEXT]), ("writer", [NEXT, KEY]), ("reader", [NEXT]), ("writer", [NEXT])]
    for name, keys in steps:
        keys_at(*keys, name=name)
        assert readable(), f"while {name} has {keys}"
    keys_at(KEY, name="writer")
    assert not readable()


def test_a_key_file_that_is_not_usable_is_refused(
    tmp_path: Path, keys_at: Callable[..., SigningKeys]
) -> None:
    """At the start in one sentence; later nothing is written unsigned and nothing read unchecked."""
    with pytest.raises(SecretFileError, match="signing key of 5 characters"):
        keys_at("short")
    keys, path = keys_at(KEY), tmp_path / "file.json"
    write_control_file(path, order(), keys)
    (tmp_path / "keys").chmod(0o644)
    before = path.read_bytes()
    for use in (lambda: read_commands(path, "run-1", keys), lambda: write_control_file(path, order(2), keys)):
        reason, sentence = reason_of(use)
        assert reason == "signature"
        assert "has mode 0644" in sentence
    assert path.read_bytes() == before


def channel(folder: Path, key_file: Path | None, errors: list[str]) -> ControlChannel:
    """A trainer's end, which polls when it is told to."""
    config = ControlConfig(folder=folder, signing_key_file=key_file)
    return ControlChannel(config, "run-1", node="here", on_error=errors.append)


def seqs(end: ControlChannel) -> list[int]:
    """Return the numbers of the commands that wait."""
    return [command.seq for command in end.pending]


def test_a_trainer_believes_only_what_is_signed(tmp_path: Path, keys_at: Callable[..., SigningKeys]) -> None:
    """A forged file is counted and changes nothing; an old signed one is answered already, or fenced off."""
    keys, errors = keys_at(KEY), list[str]()
    folder = tmp_path / "control"
    path = folder / "run-1" / "commands.json"
    end = channel(folder, tmp_path / "keys", errors)
    end.poll()
    end.refresh()
    assert read_status(path.with_name("status.json"), "run-1", keys) is not None
    write_control_file(path, order(1, epoch=3), keys)
    old = path.read_bytes()
    end.poll()
    assert seqs(end) == [1]
    end.answer(CommandOutcome(id="c1", seq=1, action="pause", result="applied", step=1, at=1.0))

    write_control_file(path, order(2, epoch=3))
    end.poll()
    assert (errors, seqs(end)) == (["signature"], [])
    path.write_bytes(old)  # a replay: its number has been answered
    end.poll()
    assert seqs(end) == []
    write_control_file(path, order(2, epoch=4), keys)
    end.poll()
    assert seqs(end) == [2]
    path.write_bytes(old)  # and now its epoch is over
    end.poll()
    assert errors == ["signature", "stale"]
    end.close("finished")


def test_a_forged_status_is_not_remembered(tmp_path: Path, keys_at: Callable[..., SigningKeys]) -> None:
    """A new session sets an unsigned status.json aside: nobody can pretend that commands were answered."""
    keys_at(KEY)
    errors: list[str] = []
    status = tmp_path / "control" / "run-1" / "status.json"
    status.parent.mkdir(parents=True)
    forged = StatusFile(
        run="run-1", session="s", state="running", step=1, applied_seq=2**40, updated_at=1.0, pid=1, node="n"
    )
    write_control_file(status, forged)
    end = channel(tmp_path / "control", tmp_path / "keys", errors)
    end.poll()
    assert errors == ["signature"]
    assert not end.trusted(order(1, issued_at=time.time() - 1).commands[0])
    assert [path.name for path in status.parent.glob("status.json.damaged-*")]
    end.close("finished")


def test_the_worked_example_of_the_protocol_page() -> None:
    """The page's file, key and HMAC agree, by nothing but the standard library."""
    text = PAGE.read_text()
    section = text[text.index("## Signed files") :]
    example = re.search(r"```json\n(\{.*?\n\})\n```", section, re.DOTALL)
    key = re.search(r"signing key\s+`(\w+)`", section)
    assert example
    assert key
    data = example[1].encode()
    signature = json.loads(data)["signature"]
    assert signature["key"] == hashlib.sha256(b"trainswitch.key/1\n" + key[1].encode()).hexdigest()[:8]
    blank = data.replace(signature["hmac"].encode(), b"0" * 64)
    assert signature["hmac"] == hmac.new(key[1].encode(), blank, hashlib.sha256).hexdigest()


def test_the_page_and_the_code_agree(tmp_path: Path, keys_at: Callable[..., SigningKeys]) -> None:
    """The page's example is a file that this trainer takes."""
    section = PAGE.read_text().partition("## Signed files")[2]
    example = re.search(r"```json\n(\{.*?\n\})\n```", section, re.DOTALL)
    key = re.search(r"signing key\s+`(\w+)`", section)
    assert example
    assert key
    path = tmp_path / "commands.json"
    path.write_text(example[1])
    found = read_commands(path, "gpt2-wikitext", keys_at(key[1]))
    assert found is not None
    assert [command.action for command in found.commands] == ["pause"]
    assert json.loads(example[1])["signature"]["key"] == key_id(key[1].encode())
