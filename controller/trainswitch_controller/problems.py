"""What stands in the way at present; each problem is logged when it begins and when it ends."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


class Problems:
    """The present problems by name. One thread reports; any thread may read."""

    def __init__(self) -> None:
        self._present: dict[str, str] = {}

    def report(self, name: str, problem: str | None) -> bool:
        """Note that `name` has `problem` now, or none; log it and return True if that is a change."""
        if self._present.get(name) == problem:
            return False
        if problem is None:
            del self._present[name]
            log.info("%s: works again", name)
        else:
            self._present[name] = problem
            log.error("%s: %s", name, problem)
        return True

    def clear(self) -> None:
        """Forget every problem: another controller deals with them now."""
        self._present.clear()

    def get(self, name: str) -> str | None:
        """Return the present problem of `name`."""
        return self._present.get(name)

    def all(self) -> dict[str, str]:
        """Return every present problem by its name."""
        return dict(self._present)
