"""Bearer tokens: read from files that only their owner can read, compared in constant time."""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path

from trainswitch_controller.errors import TokenError, Unauthorized

MAX_TOKEN_BYTES = 4096


class TokenFile:
    """One role's token; the file is read again whenever it has changed.

    A file that turns unusable closes the door (503) instead of leaving the old token valid: removing the
    file is how a token is revoked.
    """

    def __init__(self, path: Path, role: str) -> None:
        self.path = path
        self.role = role
        self._known: tuple[tuple[int, ...], bytes] | None = None

    def token(self) -> bytes:
        """Return the token without surrounding white space.

        Raises:
            TokenError: the file is missing, empty, too long, or accessible to others than its owner.
        """
        try:
            with self.path.open("rb") as handle:
                seen = os.fstat(handle.fileno())
                signature = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_size)
                if self._known and self._known[0] == signature:
                    return self._known[1]
                mode = stat.S_IMODE(seen.st_mode)
                content = handle.read(MAX_TOKEN_BYTES + 1)
        except OSError as error:
            raise TokenError(
                f"the {self.role} token file {self.path} cannot be read: {error.strerror or error}; "
                "create it with mode 0600."
            ) from error
        token = self._checked(content, mode)
        self._known = (signature, token)
        return token

    def check(self, authorization: str | None) -> None:
        """Let the holder of the token pass; `authorization` is the request's header of that name.

        Raises:
            Unauthorized: the header is missing, is no bearer token, or holds another token.
            TokenError: the token file is not usable.
        """
        token = self.token()
        scheme, _, presented = (authorization or "").partition(" ")
        # Header values reach us as latin-1; comparing bytes keeps compare_digest away from non-ASCII strings.
        matches = hmac.compare_digest(presented.strip().encode("latin-1", "replace"), token)
        if scheme.lower() != "bearer" or not matches:
            raise Unauthorized(
                f"this address needs the {self.role} token: send 'Authorization: Bearer …' with the "
                "content of its token file."
            )

    def _checked(self, content: bytes, mode: int) -> bytes:
        if mode & 0o077:
            raise TokenError(
                f"the {self.role} token file {self.path} has mode {mode:04o} and can be used by others than "
                f"its owner: run 'chmod 600 {self.path}'."
            )
        token = content.strip()
        if not token:
            raise TokenError(
                f"the {self.role} token file {self.path} is empty: write a long random token into it."
            )
        if len(content) > MAX_TOKEN_BYTES or len(token.split()) > 1:
            raise TokenError(
                f"the {self.role} token file {self.path} does not hold one token: write a single line of at "
                f"most {MAX_TOKEN_BYTES} bytes without spaces into it."
            )
        return token
