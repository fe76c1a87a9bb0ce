"""Signatures of the control files, for folders that others can write to as well.

A signed file names its key and holds an HMAC-SHA256 over its own bytes, in which the HMAC's 64 digits stand
as zeros. So there is no second form of the content that two implementations could disagree about, and nothing
in the file is left out, not even keys that a reader does not know.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path
from typing import Any

from trainswitch.errors import ControlFileError, SecretFileError
from trainswitch.secret_file import SecretFile

SHORTEST_KEY = 32
"""Characters that a key has at least."""

_BLANK = b"0" * 64
_HMAC = re.compile(r"[0-9a-f]{64}")


class SigningKeys:
    """The keys of one file: the first signs, each is believed; read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        """Read the keys for the first time.

        Raises:
            SecretFileError: the file is not usable.
        """
        self._file = SecretFile(path, "signing key", SHORTEST_KEY)
        self._file.secrets()

    def signed(self, path: Path, text: bytes) -> bytes:
        """Return the JSON object `text`, which is to be written to `path`, with a signature as its last key.

        Raises:
            ControlFileError: the key file is not usable any more.
        """
        key = self._keys(path)[0]
        content, brace, _ = text.rpartition(b"}")
        assert brace
        before = content.rstrip() + f',\n "signature": {{"key": "{key_id(key)}", "hmac": "'.encode()
        after = b'"}\n}'
        return before + mac(key, before + _BLANK + after).encode() + after

    def check(self, path: Path, data: bytes, document: dict[str, Any]) -> None:
        """Return if `data`, whose content is `document`, was signed with one of the keys.

        Raises:
            ControlFileError: it was not, or the key file is not usable any more.
        """
        keys = self._keys(path)
        signature = document.get("signature")
        if not isinstance(signature, dict) or not _HMAC.fullmatch(str(signature.get("hmac"))):
            raise ControlFileError(
                "signature",
                f"{path} is not signed: give its writer the signing_key_file that its reader has.",
            )
        found = str(signature["hmac"])
        before, _, after = data.rpartition(found.encode())
        matches = [hmac.compare_digest(mac(key, before + _BLANK + after), found) for key in keys]
        if not any(matches):
            known = " or ".join(key_id(key) for key in keys)
            raise ControlFileError(
                "signature",
                f"{path} has a wrong signature (by key {str(signature.get('key'))[:16]!r}, where {known} "
                "belongs): somebody else wrote it, or its writer has another signing_key_file.",
            )

    def _keys(self, path: Path) -> tuple[bytes, ...]:
        try:
            return self._file.secrets()
        except SecretFileError as error:
            raise ControlFileError(
                "signature", f"{path} can neither be signed nor checked: {error}"
            ) from error


def key_id(key: bytes) -> str:
    """Return 8 digits that name `key` and do not tell it."""
    return hashlib.sha256(b"trainswitch.key/1\n" + key).hexdigest()[:8]


def mac(key: bytes, data: bytes) -> str:
    """Return the HMAC of `data`, in which the place of the HMAC holds zeros, as 64 digits."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()
