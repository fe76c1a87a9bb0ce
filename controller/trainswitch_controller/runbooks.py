"""The runbooks, as the links in notifications reach them."""

from __future__ import annotations

import re
from pathlib import Path

from trainswitch_controller.errors import NotFound

_ALERT = re.compile(r"[A-Za-z][A-Za-z0-9]{0,79}")


def read_runbook(folder: Path | None, alert: str) -> str:
    """Return the page of `alert` (Markdown) in `folder`.

    Raises:
        NotFound: there is none.
    """
    path = folder / f"{alert}.md" if folder is not None and _ALERT.fullmatch(alert) else None
    if path is None or not path.is_file():
        raise NotFound(f"there is no runbook of {alert[:80]!r} here.")
    return path.read_text(encoding="utf-8")
