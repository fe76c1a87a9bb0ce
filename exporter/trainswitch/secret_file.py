"""Secrets in files: one a line, for their owner's eyes only, read again whenever the file has changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from trainswitch.errors import SecretFileError

MAX_SECRETS = 8
"""How many a file may hold; two are enough to change one for another."""
MAX_SECRET_BYTES = 4096

_MAX_FILE_BYTES = MAX_SECRETS * (MAX_SECRET_BYTES + 2)


class SecretFile:
    """One file of secrets, the present one first; the others are still valid while they are being replaced.

    A file that turns unusable gives no secret at all, instead of the ones that were read before: removing the
    file is how its secrets are revoked.
    """

    def __init__(self, path: Path, what: str, shortest: int) -> None:
        """Describe the file; nothing is read yet.

        Args:
            path: where it is.
            what: names it in sentences, such as "operator token".
            shortest: bytes that each secret has at least.
        """
        self.path = path
        self._what = what
        self._shortest = shortest
        self._known: tuple[tuple[int, ...], tuple[bytes, ...]] | None = None

    def secrets(self) -> tuple[bytes, ...]:
        """Return the secrets in the order of their lines, at least one.

        Raises:
            SecretFileError: the file is missing, empty, too long, accessible to others than its owner, or
                holds a secret that is too short or has a space in it.
        """
        try:
            # Not blocking: a named pipe in its place must not hold the reader up for ever.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as handle:
                seen = os.fstat(handle.fileno())
                signature = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_size)
                if self._known and self._known[0] == signature:
                    return self._known[1]
                content = handle.read(_MAX_FILE_BYTES + 1) if stat.S_ISREG(seen.st_mode) else b""
        except OSError as error:
            raise SecretFileError(
                f"the {self._what} file {self.path} cannot be read: {error.strerror or error}; "
                "create it with mode 0600."
            ) from error
        secrets = self._checked(content, stat.S_IMODE(seen.st_mode))
        self._known = (signature, secrets)
        return secrets

    def _checked(self, content: bytes, mode: int) -> tuple[bytes, ...]:
        name = f"the {self._what} file {self.path}"
        if mode & 0o077:
            raise SecretFileError(
                f"{name} has mode {mode:04o} and can be used by others than its owner: "
                f"run 'chmod 600 {self.path}'."
            )
        secrets = tuple(line.strip() for line in content.splitlines() if line.strip())
        if not secrets:
            raise SecretFileError(f"{name} is empty: write a long random {self._what} into it.")
        if (
            len(secrets) > MAX_SECRETS
            or len(content) > _MAX_FILE_BYTES
            or any(len(secret) > MAX_SECRET_BYTES or len(secret.split()) > 1 for secret in secrets)
        ):
            raise SecretFileError(
                f"{name} does not hold one {self._what} a line: write at most {MAX_SECRETS} lines of at most "
                f"{MAX_SECRET_BYTES} bytes without spaces into it."
            )
        for number, secret in enumerate(secrets, 1):
            if len(secret) < self._shortest:
                raise SecretFileError(
                    f"{name} holds a {self._what} of {len(secret)} characters ({number} of {len(secrets)}), "
                    f"which can be guessed: write a random one of at least {self._shortest} into it."
                )
        return secrets
