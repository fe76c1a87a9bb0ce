"""Every exception that trainswitch raises, as a tree; each message is one sentence with the way out.

TrainswitchError
├── ConfigError             a setting that is unknown, misplaced or out of bounds
│   ├── RunNameError        a run name that cannot be a folder and a label
│   └── SecretFileError     a file of tokens or keys that is missing, weak, or readable by others
├── ServerError             the scrape endpoint cannot be opened
├── RingError               the shared-memory ring cannot be created or read
├── ControlFileError        commands.json or status.json cannot be read or written
├── CommandError            an action or its parameters are not valid
├── AgreementLost           the ranks of a run cannot act as one (any more)
├── GuardLost               gradients that are not finite cannot be kept from the weights (any more)
├── ActionRefused           a valid command that this run cannot carry out; nothing was changed
└── CheckpointError         a checkpoint cannot be written or read
    └── CheckpointCorrupt   a checkpoint whose content does not match its checksum
"""

from __future__ import annotations


class TrainswitchError(Exception):
    """Base of everything that trainswitch raises on purpose."""


class ConfigError(TrainswitchError):
    """A setting is unknown, misplaced or out of bounds."""


class RunNameError(ConfigError):
    """A run name does not match ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``."""


class SecretFileError(ConfigError):
    """A file of tokens or keys is missing, empty, weak, or readable by others than its owner."""


class ServerError(TrainswitchError):
    """The scrape endpoint cannot be opened as configured."""


class RingError(TrainswitchError):
    """The shared-memory ring cannot be created or read."""


class ControlFileError(TrainswitchError):
    """``commands.json`` or ``status.json`` cannot be read or written.

    Attributes:
        reason: one of ``CONTROL_FILE_REASONS``; the label of ``trainswitch_control_file_errors_total``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CommandError(TrainswitchError):
    """An action does not exist, or its parameters are not valid for it."""


class GuardLost(TrainswitchError):
    """Gradients that are not finite cannot be kept from the weights; training goes on without the guard."""


class ActionRefused(TrainswitchError):
    """A valid command that this run cannot carry out; nothing was changed."""


class AgreementLost(TrainswitchError):
    """The ranks of a run cannot act as one: one of them is gone, has no monitor, or cannot be reached.

    Attributes:
        gone: the ranks that gave no sign any more; empty where that is not known.
    """

    def __init__(self, message: str, gone: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.gone = gone


class CheckpointError(TrainswitchError):
    """A checkpoint cannot be written or read.

    Attributes:
        reason: one of ``CHECKPOINT_FAILURE_REASONS``; the label of ``train_checkpoint_failures_total``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class CheckpointCorrupt(CheckpointError):
    """A checkpoint's content does not match the checksum in its manifest."""

    def __init__(self, message: str) -> None:
        super().__init__("corrupt", message)


CONTROL_FILE_REASONS = (
    *("torn", "foreign", "newer", "stale", "unreadable", "too_large", "write", "ranks"),
    *("permissions", "signature"),
)
"""Why a control file was not taken: not JSON, another run's or schema's, a newer schema's, an epoch already
fenced off, an operating-system error, over the size limit; ``write`` counts failures to write status.json,
``ranks`` that not every rank of the run can be reached, so that no command is carried out, ``permissions``
that others could have written the file or its folder, ``signature`` that the file's is missing or wrong."""

CHECKPOINT_FAILURE_REASONS = ("disk", "corrupt", "state", "busy", "nonfinite")
"""Why a checkpoint failed: the file system, a wrong checksum, a state that cannot be saved or loaded, a save
that was still being written when the next was due, or weights that hold NaN or infinity."""
