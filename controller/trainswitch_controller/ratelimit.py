"""How often one caller may do something: a bucket for each, in bounded memory.

The generic cell rate algorithm, which needs one number a caller. The libraries for it keep every key until it
expires, however many there are, and clean up from a thread.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_CALLERS = 10_000
"""Callers that a limit remembers; beyond, those forgotten first have not done anything for longest."""

_PERIOD_S = 60.0


class RateLimit:
    """So many a minute for each key, at once or spread; then one whenever its share of a minute has passed.

    Not for several threads at a time.
    """

    def __init__(self, per_minute: int, now: Callable[[], float] = time.monotonic) -> None:
        self._interval = _PERIOD_S / per_minute
        self._now = now
        self._full_until: OrderedDict[Hashable, float] = OrderedDict()
        """Key → when its bucket is empty again, in seconds of `now`; the one used last at the end."""

    def __len__(self) -> int:
        """Return how many callers are remembered."""
        return len(self._full_until)

    def wait(self, key: Hashable) -> float:
        """Return in how many seconds `key` may do it again; 0 is now."""
        now = self._now()
        filled = max(self._full_until.get(key, now), now)
        return max(0.0, filled + self._interval - _PERIOD_S - now)

    def take(self, key: Hashable) -> float:
        """Note that `key` does it, if it may; else return in how many seconds it may, and note nothing."""
        wait = self.wait(key)
        if wait == 0.0:
            now = self._now()
            self._full_until[key] = max(self._full_until.get(key, now), now) + self._interval
            self._full_until.move_to_end(key)
            if len(self._full_until) > MAX_CALLERS:
                self._full_until.popitem(last=False)
        return wait


def network_of(address: str) -> str:
    """Return what stands for one caller: an IPv4 address, or the /64 in which an IPv6 host is free."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
