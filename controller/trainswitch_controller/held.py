"""What a run's ``commands.json`` is known to hold, and the errors of writing it."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Sequence
from pathlib import Path

from trainswitch.errors import ControlFileError
from trainswitch.files import signature
from trainswitch.intervention.commands import Command
from trainswitch_controller.records import CommandRecord

Signature = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Held:
    """What the file held when it was last written or read."""

    epoch: int
    content: tuple[tuple[str, int], ...]
    """Id and seq of each command, in order."""
    at: float
    """When it was written, in Unix seconds."""
    signature: Signature

    def holds(self, command: CommandRecord) -> bool:
        """Return whether `command` is in the file under its present number."""
        return (command.id, command.seq) in self.content


def content_of(commands: Sequence[CommandRecord]) -> tuple[tuple[str, int], ...]:
    """Return what `Held.content` is when the file holds `commands`."""
    return tuple((command.id, command.seq) for command in commands if command.seq is not None)


def on_the_wire(command: CommandRecord) -> Command:
    """Return a command that is due as ``commands.json`` has it."""
    assert command.seq is not None
    assert command.issued_at is not None
    return Command(
        id=command.id,
        seq=command.seq,
        action=command.action,
        params=command.params,
        reason=command.reason,
        issued_at=command.issued_at,
        expires_at=command.expires_at,
    )


def signature_of(path: Path) -> Signature | None:
    """Return what changes whenever the file is replaced; None where there is no file."""
    try:
        return signature(path)
    except NotADirectoryError:
        return None
    except OSError as error:
        return (error.errno or -1,)


def failure_reason(error: BaseException | None) -> str:
    """Return the label of ``write_failures_total`` for what the operating system, or the protocol, said."""
    if isinstance(error, ControlFileError):
        ours = error.reason in {"permissions", "signature"}
        return error.reason if ours else failure_reason(error.__cause__)
    number = error.errno if isinstance(error, OSError) else None
    if number in {errno.ENOENT, errno.ENOTDIR}:
        return "missing_folder"
    if number in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return "no_space"
    if number in {errno.EROFS, errno.EACCES, errno.EPERM}:
        return "read_only"
    return "other"
