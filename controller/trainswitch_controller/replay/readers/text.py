"""Reading a text file whole, and its first bytes."""

from __future__ import annotations

from pathlib import Path

from trainswitch_controller.errors import RecordedRunError


def head(path: Path, size: int) -> bytes:
    """Return the first `size` bytes of a file.

    Raises:
        RecordedRunError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise RecordedRunError(f"{path} cannot be read: {error.strerror or error}.") from error


def text_of(path: Path) -> str:
    """Return the content of a text file; line ends are those of the file.

    Raises:
        RecordedRunError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise RecordedRunError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise RecordedRunError(
            f"{path} is not UTF-8 text (byte {error.start}): convert it, for example with iconv."
        ) from None
