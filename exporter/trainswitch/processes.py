"""What can be seen of a process from outside, by way of ``/proc``."""

from __future__ import annotations

from typing import Literal

Seen = Literal["alive", "suspended", "dead"]
ProcessState = Literal["running", "hung", "suspended", "died", "ended"]
"""What a watched process does: `Seen`, and what only those who know its work can add."""
PROCESS_STATES: tuple[ProcessState, ...] = ("running", "hung", "suspended", "died", "ended")

_STATE = 0  # the fields of /proc/<pid>/stat behind the program's name, see proc_pid_stat(5)
_START_TIME = 19


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the boot; None where there is none.

    With the pid it identifies the process: a pid alone is used again.
    """
    fields = _stat(pid)
    return int(fields[_START_TIME]) if fields is not None else None


def look(pid: int, started: int) -> Seen:
    """Tell whether the process `pid` that began at `started` (see `start_ticks`) lives.

    Returns:
        ``suspended`` for one that SIGSTOP or a debugger holds; ``dead`` for one that is gone, was replaced,
        or only waits to be reaped.
    """
    fields = _stat(pid)
    if fields is None or int(fields[_START_TIME]) != started or fields[_STATE] in "ZXx":
        return "dead"
    return "suspended" if fields[_STATE] in "Tt" else "alive"


def _stat(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as handle:  # noqa: PTH123 - cheaper
            text = handle.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()  # the name before it may hold anything
