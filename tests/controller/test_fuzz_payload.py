"""The parser of alerts, and what the journal makes of them, against arbitrary and spoilt deliveries."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainswitch_controller.alerts import Webhook
from trainswitch_controller.body import parse_document
from trainswitch_controller.errors import RequestError

texts = st.text(max_size=40) | st.sampled_from(
    ["", "\x00", "\ud800", "../x", "demo", "<b>&</b>", "a\nb", "x" * 5000, "firing", "TrainNonFinite", "NaN"]
)
moments = st.sampled_from(
    [
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "2023-11-14T22:13:20.123456789Z",
        "1970-01-01",
        "-1",
        "1e400",
    ]
)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | texts
    | moments
    | st.sampled_from([10**400, -1, 0, 1e308])
)
documents = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything within `document`."""
    found = [at]
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in inner:
        found += places(value, (*at, key))
    return found


@st.composite
def spoilt(draw: st.DrawFn, good: dict[str, Any]) -> bytes:
    """`good` with up to three of its parts replaced, removed or doubled, and perhaps a few bytes changed."""
    document: Any = copy.deepcopy(good)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in places(document) if path]))
        parent: Any = document
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(["replace", "remove", "double"]))
        if how == "replace":
            parent[path[-1]] = draw(documents)
        elif how == "remove":
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        if not document:
            break
    data = bytearray(json.dumps(document).encode())
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


def test_no_delivery_breaks_the_controller(
    make_loop: Callable[..., Any], home: Any, tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused with a 4xx and one sentence, or journaled; the log keeps whole lines."""
    caplog.set_level(logging.INFO, "trainswitch_controller")
    home.trainer()
    loop = make_loop()
    good = tools.webhook(
        tools.alert(), tools.alert("TrainLossUnstable", status="resolved"), tools.alert("Watchdog")
    )
    results = {"refused": 0, "taken": 0}
    sentences: list[str] = []

    @given(spoilt(good) | st.binary(max_size=100) | documents.map(lambda value: json.dumps(value).encode()))
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    def deliver(body: bytes) -> None:
        try:
            receipt = loop.controller.deliver(parse_document(body, Webhook, "a webhook"))
        except RequestError as error:
            results["refused"] += 1
            sentences.append(str(error))
        else:
            results["taken"] += 1
            assert all(one.reason for one in receipt.judged)

    deliver()
    assert [one for one in sentences if len(one) > 1000 or not one.isprintable()] == []
    assert [record.getMessage() for record in caplog.records if not record.getMessage().isprintable()] == []
    assert min(results.values()) > 5, "it should have met both"
    loop.tick()
    assert loop.controller.problems() == []
    assert loop.fire(starts_at=loop.clock.time + 1) in {"acted", "held", "budget", "cooldown", "duplicate"}
