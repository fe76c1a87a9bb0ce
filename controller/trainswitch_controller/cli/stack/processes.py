"""Processes that outlive the command that starts them, and that are known again later."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.stack.record import ServiceProcess

_SAME_START_S = 2.0
"""Boot time is known to the second, so a process's start since then varies by about as much."""


def spawn(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> tuple[int, float]:
    """Start a program in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it.

    Args:
        arguments: absolute path of the program, and its arguments.
        environment: its whole environment.
        log: takes its output; the log of the start before is kept with ``.1`` behind its name.

    Returns:
        Its pid, and its start in seconds since the machine's boot.

    Raises:
        StackError: the program cannot be started.
    """
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))
    try:
        # Unlike subprocess.Popen, this leaves no object that wants to be waited for.
        pid = os.posix_spawn(
            arguments[0],
            list(arguments),
            dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
    except OSError as error:
        raise StackError(
            f"cannot start {arguments[0]}: {error.strerror or error}; is it a program for this machine?"
        ) from error
    return pid, _started_s(psutil.Process(pid))


def find_running(service: ServiceProcess) -> psutil.Process | None:
    """Return the process of `service` if it still runs; None if it ended, though its pid may live on."""
    try:
        process = psutil.Process(service.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process if abs(_started_s(process) - service.started_s) < _SAME_START_S else None
    except psutil.NoSuchProcess:
        return None


def terminate(services: Iterable[ServiceProcess], grace_s: float) -> None:
    """Ask the services that still run to end, and kill those that have not after `grace_s` seconds."""
    running = [process for service in services if (process := find_running(service)) is not None]
    for process in running:
        _signal(process, force=False)
    _, stubborn = psutil.wait_procs(running, timeout=grace_s)
    for process in stubborn:
        _signal(process, force=True)
    psutil.wait_procs(stubborn, timeout=grace_s)


def log_tail(log: Path, lines: int = 5) -> str:
    """Return the last lines of a log, or nothing where there is none."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _signal(process: psutil.Process, *, force: bool) -> None:
    try:
        if force:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        pass  # it ended by itself, which is what was wanted
    except psutil.AccessDenied:
        raise StackError(
            f"process {process.pid} belongs to {process.username()}: run this as that user."
        ) from None


def _started_s(process: psutil.Process) -> float:
    # Relative to the boot, because the wall clock can be set while the process runs.
    return float(process.create_time() - psutil.boot_time())
