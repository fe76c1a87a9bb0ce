"""Plays Alertmanager: delivers messages at given moments, each until it is answered with 200."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import heapq
import itertools
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import requests

_SENDERS = 4
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 0.4
_TIMEOUT_S = 5.0


@dataclasses.dataclass
class Episode:
    """One alert from its first firing until it resolves, and what became of its messages."""

    alertname: str
    run: str
    starts_at: float
    """Unix seconds."""
    fired_at: float | None = None
    """When a firing message was first answered with 200, in monotonic time, as below."""
    resolving_since: float | None = None
    """When a resolved message first left."""

    @property
    def must_act(self) -> bool:
        """Whether it was surely heard of before its end could be: then its first rung must be taken."""
        if self.fired_at is None:
            return False
        return self.resolving_since is None or self.fired_at < self.resolving_since

    @property
    def labels(self) -> dict[str, str]:
        """What the alert is labelled with."""
        return {"alertname": self.alertname, "run": self.run, "severity": "critical", "action": "chaos"}

    @property
    def fingerprint(self) -> str:
        """Hash of the labels."""
        return hashlib.sha256(repr(sorted(self.labels.items())).encode()).hexdigest()[:16]

    def alert(self, status: str) -> dict[str, Any]:
        """Return the entry of a webhook's ``alerts``."""
        began = dt.datetime.fromtimestamp(self.starts_at, dt.timezone.utc)
        return {
            "status": status,
            "labels": self.labels,
            "annotations": {"summary": "made by scripts/chaos"},
            "startsAt": began.isoformat(),
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": self.fingerprint,
        }


@dataclasses.dataclass(frozen=True)
class Message:
    """What is delivered until it is taken."""

    episode: Episode
    status: str


@dataclasses.dataclass
class Attempt:
    """One POST."""

    mark: str
    """Unique; the journal keeps it as the delivery's receiver."""
    message: Message
    code: int | None = None
    """None where no answer came."""


class Sender:
    """Sends from threads of its own, so that one message overtakes another."""

    def __init__(self, url: str, token: str, on_post: Callable[[], None]) -> None:
        self.attempts: list[Attempt] = []
        self.taken: list[Message] = []
        """Messages that were answered with 200, for replays."""
        self._url = f"{url}/api/v1/alerts"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._on_post = on_post
        self._count = itertools.count()
        self._queue: list[tuple[float, int, Message, float]] = []
        self._busy = 0
        self._changed = threading.Condition()
        self._over = False
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_SENDERS)]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message, *, at: float) -> None:
        """Have `message` leave at monotonic time `at`."""
        self._put(at, message, _FIRST_WAIT_S)

    def idle(self) -> bool:
        """Return whether everything was taken."""
        with self._changed:
            return not (self._queue or self._busy)

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _put(self, at: float, message: Message, wait: float) -> None:
        with self._changed:
            heapq.heappush(self._queue, (at, next(self._count), message, wait))
            self._changed.notify()

    def _work(self) -> None:
        with requests.Session() as session:
            while (item := self._next()) is not None:
                message, wait = item
                if not self._post(session, message):
                    self._put(time.monotonic() + wait, message, min(2 * wait, _LONGEST_WAIT_S))
                with self._changed:
                    self._busy -= 1

    def _next(self) -> tuple[Message, float] | None:
        with self._changed:
            while not self._over:
                now = time.monotonic()
                if self._queue and self._queue[0][0] <= now:
                    _, _, message, wait = heapq.heappop(self._queue)
                    self._busy += 1
                    return message, wait
                self._changed.wait(self._queue[0][0] - now if self._queue else None)
            return None

    def _post(self, session: requests.Session, message: Message) -> bool:
        episode = message.episode
        attempt = Attempt(uuid.uuid4().hex, message)
        self.attempts.append(attempt)
        if message.status == "resolved" and episode.resolving_since is None:
            episode.resolving_since = time.monotonic()
        body = {
            "version": "4",
            "receiver": attempt.mark,
            "groupKey": "chaos",
            "status": message.status,
            "alerts": [episode.alert(message.status)],
        }
        self._on_post()
        try:
            answer = session.post(self._url, json=body, headers=self._headers, timeout=_TIMEOUT_S)
        except requests.RequestException:
            return False
        attempt.code = answer.status_code
        if answer.status_code != requests.codes.ok:
            return False
        if message.status == "firing" and episode.fired_at is None:
            episode.fired_at = time.monotonic()
        self.taken.append(message)
        return True
