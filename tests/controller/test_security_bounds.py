"""What a client may hold, send and open: every bound, tried against a real server."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from trainswitch_controller import body, connections
from trainswitch_controller.serving import MAX_HEAD_BYTES

Make = Callable[..., Any]

ALERTMANAGER = b"POST /api/v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alertmanager-secret\r\n"


def connect(server: Any) -> socket.socket:
    """Open a connection of our own to `server`."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def ended(connection: socket.socket) -> bool:
    """Wait for the other end to close, or to break the connection, whatever it sends before."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\nGET /-/healthy HTTP/1.1\r\n",
        b"POST /api/v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    ],
    ids=["silence", "half a head", "half of a second head", "a body that nobody wants"],
)
def test_a_request_that_does_not_come_is_not_waited_for(
    sent: bytes, make_server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection on which no whole request arrives in time is cut, although single bytes keep arriving."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    server = make_server()
    with connect(server) as connection:
        connection.sendall(sent)
        connection.settimeout(0.05)
        deadline = time.monotonic() + 10
        while True:
            assert time.monotonic() < deadline, "it was not cut"
            try:
                if not connection.recv(4096):
                    break
            except TimeoutError:
                if sent:
                    connection.sendall(b"x")  # uvicorn's own timer would begin anew
            except (ConnectionResetError, BrokenPipeError):
                break
    assert server.metric("refused_requests_total", reason="slow") == 1
    assert server.client.get("/-/healthy").status_code == 200


def test_a_slow_answer_is_not_cut(
    home: Any, tools: Any, make_server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for a request does not run while the controller works on its answer."""
    monkeypatch.setattr(connections, "REQUEST_S", 0.1)
    server = make_server()
    deliver = server.controller.deliver

    def slowly(webhook: Any) -> Any:
        time.sleep(0.4)
        return deliver(webhook)

    monkeypatch.setattr(server.controller, "deliver", slowly)
    assert server.post(tools.webhook(tools.alert())).status_code == 200


def test_a_body_that_trickles_is_503(make_server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body has so long in all; the answer is one that Alertmanager repeats, and nothing is stored."""
    monkeypatch.setattr(body, "BODY_S", 0.3)
    server = make_server()
    with connect(server) as connection:
        connection.sendall(ALERTMANAGER + b"Content-Length: 1000\r\n\r\n{")
        answer = b""
        while b"arrived" not in answer and (part := connection.recv(4096)):  # head and body may come apart
            answer += part
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"only 1 bytes of the body arrived" in answer
    assert server.metric("webhooks_total", code="503") == 1


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * MAX_HEAD_BYTES * 2,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: " + b"a" * MAX_HEAD_BYTES * 2,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: a\r\n" * MAX_HEAD_BYTES,
        b"\x00" * 100 + b"\r\n\r\n",
    ],
    ids=["line", "header", "headers", "noise"],
)
def test_the_head_of_a_request_is_bounded(
    head: bytes, make_server: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """An endless line, header or number of headers is refused, not read to its end, and not logged."""
    server = make_server()
    with connect(server) as connection:
        try:
            connection.sendall(head)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400")
        except (ConnectionResetError, BrokenPipeError):
            pass  # it was closed while we were still sending
        assert ended(connection)
    assert server.client.get("/-/healthy").status_code == 200
    assert "Invalid HTTP" not in caplog.text


def test_one_client_cannot_take_all_connections(make_server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its share a client's connections are closed at once; those that it gives back are free again."""
    monkeypatch.setattr(connections, "MAX_PER_CLIENT", 4)
    server = make_server()
    server.client.get("/-/healthy")  # our own connection, kept alive, is the first of the four
    held = [connect(server) for _ in range(3)]
    with connect(server) as one_more:
        assert ended(one_more)
    assert server.metric("refused_requests_total", reason="connections") == 1
    for connection in held:
        connection.close()

    def free() -> bool:
        with connect(server) as connection:
            connection.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            try:
                return connection.recv(100).startswith(b"HTTP/1.1 200")
            except ConnectionResetError:
                return False

    deadline = time.monotonic() + 10
    while not free():
        assert time.monotonic() < deadline


def test_an_upgrade_is_not_taken(make_server: Make) -> None:
    """There is no WebSocket: the request is answered as the ordinary one that it also is."""
    server = make_server()
    response = server.client.get("/-/healthy", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
    assert response.status_code == 200


def test_alerts_are_bounded_in_number_and_size(tools: Any, make_server: Make) -> None:
    """Too many alerts or labels are refused as a whole; a text that is too long is cut and still decided."""
    server = make_server(max_body_bytes=16 * 1_048_576)
    many = tools.webhook(*[tools.alert("Unheard", number=str(number)) for number in range(5001)])
    response = server.post(many)
    assert (response.status_code, response.json()["error"].partition(" ")[0]) == (422, "the")
    assert "at most 5000 items" in response.json()["error"]
    labels = {f"label_{number}": "x" for number in range(300)}
    assert server.post(tools.webhook(tools.alert(**labels))).status_code == 422
    alert = tools.alert("Unheard", note="x" * 100_000, starts_at=time.time())
    alert["annotations"]["description"] = "y" * 100_000
    [outcome] = server.fire(alert)
    assert outcome["outcome"] == "no_policy"
    [episode] = server.ask("GET", "/api/v1/episodes").json()["episodes"]
    assert episode["labels"]["note"] == "x" * 4095 + "…"
    assert episode["annotations"]["description"] == "y" * 4095 + "…"


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_is_bounded_in_depth(opening: str, make_server: Make) -> None:
    """A body that nests a hundred thousand times is refused, by the parser and not by a crash."""
    response = make_server().post((opening * 100_000).encode())
    assert response.status_code == 400
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("commands?limit=0", 422),
        ("commands?limit=1001", 422),
        ("commands?limit=99999999999999999999999", 422),
        ("commands?run=" + "x" * 129, 422),
        ("commands?run=%00", 422),
        ("episodes?run=../x", 422),
        ("commands/" + "x" * 129, 422),
        ("commands/%00", 422),
        ("runs/..%2f..%2fetc", 404),
        ("runs/" + "x" * 129, 422),
        ("policy/" + "x" * 5000, 422),
        ("policy/X?run=%ff", 422),
    ],
)
def test_what_is_asked_is_bounded(path: str, code: int, make_server: Make) -> None:
    """Queries and parts of paths that cannot be meant are refused with a short sentence."""
    response = make_server().ask("GET", f"/api/v1/{path}")
    assert response.status_code == code
    assert len(json.dumps(response.json()["error"])) < 500
