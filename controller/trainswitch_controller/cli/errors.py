"""What can go wrong in the ``trainswitch`` command, each with its exit code.

TrainswitchError
└── CliError                     1
    ├── UsageProblem             2   an argument that cannot be meant
    ├── ControllerUnreachable    3   nobody answers at the controller's address
    ├── ControllerUnauthorised   3   the token is missing, unreadable or wrong
    ├── ControllerRefused        1   the controller answered with an error
    ├── WaitTimeout              4   the command was given, and not answered in time
    └── StackError               1   the local stack cannot be started, stopped or read
        ├── MissingBinary        1   Prometheus or Alertmanager is not installed
        ├── PortInUse            1   a port that was asked for is taken
        └── RenderError          1   a committed configuration cannot be turned into a local one
"""

from __future__ import annotations

from typing import Final

from trainswitch.errors import CommandError, ConfigError, TrainswitchError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_NO_CONTROLLER: Final = 3
EXIT_TIMEOUT: Final = 4
EXIT_INTERRUPTED: Final = 130


class CliError(TrainswitchError):
    """Base of the command line's own errors.

    Attributes:
        exit_code: what the process ends with.
    """

    exit_code: int = EXIT_FAILED


class UsageProblem(CliError):
    """An argument that cannot be meant."""

    exit_code = EXIT_USAGE


class ControllerUnreachable(CliError):
    """Nobody answers at the controller's address, or something else does."""

    exit_code = EXIT_NO_CONTROLLER


class ControllerUnauthorised(CliError):
    """The operator token is missing, unreadable or not the controller's."""

    exit_code = EXIT_NO_CONTROLLER


class ControllerRefused(CliError):
    """The controller answered with an error; nothing was changed."""


class WaitTimeout(CliError):
    """A command was given, and its answer did not come in time; it stays in force until it expires."""

    exit_code = EXIT_TIMEOUT


class StackError(CliError):
    """The local stack cannot be started, stopped or read."""


class MissingBinary(StackError):
    """Prometheus or Alertmanager is not installed where the stack looks."""


class PortInUse(StackError):
    """A port that was asked for is taken."""


class RenderError(StackError):
    """A committed configuration cannot be turned into one for this machine."""


def exit_code_of(error: TrainswitchError) -> int:
    """Return the exit code that stands for `error`."""
    if isinstance(error, CliError):
        return error.exit_code
    return EXIT_USAGE if isinstance(error, (CommandError, ConfigError)) else EXIT_FAILED
