"""Bearer tokens in files: made where the home layout lacks them, read where the controller is asked."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from trainswitch_controller.cli.errors import CliError, ControllerUnauthorised


def alertmanager_token_path(home: Path) -> Path:
    """Return the path of the token that Alertmanager sends with an alert."""
    return home / "tokens" / "alertmanager"


def operator_token_path(home: Path) -> Path:
    """Return the path of the token that an operator sends with a request."""
    return home / "tokens" / "operator"


def ensure_token(path: Path) -> Path:
    """Write a new random token to `path`, readable by its owner only, unless there is a file already.

    Two processes that do so at once end up with the same token: the file appears whole, or not at all.

    Raises:
        CliError: the folder cannot be written.
    """
    if path.exists():
        return path
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as handle:
                handle.write(secrets.token_urlsafe(32) + "\n")
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(
            f"cannot write the token {path}: {error.strerror or error}; "
            "make its folder writable, or choose another home with --home."
        ) from error
    return path


def read_operator_token(path: Path) -> str:
    """Return the token in `path`.

    Raises:
        ControllerUnauthorised: the file is missing, unreadable or empty.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ControllerUnauthorised(
            f"cannot read the operator token {path}: {reason}; name the controller's own with --token-file."
        ) from error
    if not token:
        raise ControllerUnauthorised(
            f"the operator token {path} is empty: name the controller's own with --token-file."
        )
    return token
