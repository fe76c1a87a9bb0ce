"""How a checkpoint gets at the statistics when they are kept by a sidecar: a line of JSON each way.

A request is ``{"load": state}``, with null for none to load; the answer is ``{"state": …}`` with the state of
the statistics, or ``{"error": "<sentence>"}``.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any, Protocol

ANSWER_SECONDS = 2.0
"""How long a checkpoint waits for the sidecar at most."""


class KeepsStatistics(Protocol):
    """What is needed of an aggregator."""

    def statistics_state(self) -> dict[str, Any]:
        """Return the state of the statistics."""

    def load_statistics(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`; ValueError if it cannot be read."""


def ask(line: socket.socket, load: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the state of the sidecar's statistics, after it has loaded `load`.

    Raises:
        ValueError: `load` cannot be read.
        OSError: the sidecar is gone, or did not answer within `ANSWER_SECONDS`.
    """
    line.settimeout(ANSWER_SECONDS)
    line.sendall(json.dumps({"load": load}).encode() + b"\n")
    with line.makefile("rb") as answers:
        text = answers.readline()
    if not text.endswith(b"\n"):
        raise ConnectionResetError("the sidecar is gone")
    answer = json.loads(text)
    if "error" in answer:
        raise ValueError(answer["error"])
    state: dict[str, Any] = answer["state"]
    return state


def answer_all(line: socket.socket, keeper: KeepsStatistics) -> None:
    """Answer requests until the other end is closed; for a thread of its own."""
    with contextlib.suppress(OSError), line.makefile("rb") as requests:
        for request in requests:
            state = json.loads(request)["load"]
            answer: dict[str, Any]
            try:
                if state is not None:
                    keeper.load_statistics(state)
                answer = {"state": keeper.statistics_state()}
            except ValueError as error:
                answer = {"error": str(error)}
            line.sendall(json.dumps(answer).encode() + b"\n")
