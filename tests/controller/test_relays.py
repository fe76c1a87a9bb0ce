"""Relays pass Alertmanager's webhooks on as short texts, to gateways that take them or do not."""

from __future__ import annotations

import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from trainswitch_controller.alerts import Webhook
from trainswitch_controller.errors import RelayFileError, TokenError
from trainswitch_controller.relays import load_relays, message

Make = Callable[..., Any]
DESCRIPTION = "Run demo has counted 3 steps with a non-finite value; the limit is 0."


class Gateway:
    """A gateway on a port of its own that remembers what it was sent."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.status = 200
        self.answer = b"queued"
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _take(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                address = urllib.parse.urlsplit(self.path)
                outer.requests.append(
                    {
                        "method": self.command,
                        "path": address.path,
                        "query": urllib.parse.parse_qs(address.query),
                        "headers": dict(self.headers),
                        "body": body.decode(),
                    }
                )
                self.send_response(outer.status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(outer.answer)))
                self.end_headers()
                self.wfile.write(outer.answer)

            do_GET = do_POST = do_PUT = _take  # noqa: N815 - names of http.server

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/send"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    """A gateway that is closed at the end."""
    made = Gateway()
    yield made
    made.close()


@pytest.fixture
def relays(tmp_path: Path) -> Callable[[str], Path]:
    """Write a file of relays; ``sms_token`` beside it holds a secret."""
    secret = tmp_path / "sms_token"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)

    def write(text: str) -> Path:
        path = tmp_path / "relays.yml"
        path.write_text(text.replace("SECRET", str(secret)))
        return path

    return write


def sms(url: str) -> str:
    """Return a file with one relay of the usual kind."""
    return f"""
version: 1
relays:
  sms:
    url: {url}
    headers: {{Authorization: Bearer $token}}
    json: {{to: ["+491700000000"], message: "$text", urgent: true, price: "5$$"}}
    secrets: {{token: SECRET}}
"""


def post(server: Any, name: str, document: Any, token: str | None = None) -> httpx.Response:
    """POST to a relay, as Alertmanager unless `token` says otherwise."""
    bearer = {"Authorization": f"Bearer {server.home.alertmanager_token if token is None else token}"}
    response: httpx.Response = server.client.post(f"/api/v1/relays/{name}", json=document, headers=bearer)
    return response


def trouble(tools: Any, **changes: Any) -> dict[str, Any]:
    """Return a delivery about a run with a non-finite loss."""
    alert = tools.alert(**changes)
    alert["annotations"]["description"] = DESCRIPTION
    return dict(tools.webhook(alert))


def test_a_webhook_reaches_the_gateway_in_its_own_format(
    make_server: Make, gateway: Gateway, relays: Callable[[str], Path], tools: Any
) -> None:
    """Text, secret and constants stand where the file of relays puts them, and the success is counted."""
    server = make_server(relays=relays(sms(gateway.url)))
    document = trouble(tools)
    document["alerts"][0]["annotations"]["description"] = 'Layer "a\\b"\n is $lost.'
    assert post(server, "sms", document).json() == {"relay": "sms", "result": "sent"}
    (request,) = gateway.requests
    assert (request["method"], request["path"]) == ("POST", "/send")
    assert request["headers"]["Authorization"] == "Bearer s3cret"
    body = json.loads(request["body"])
    text = body.pop("message")
    assert text.startswith("CRITICAL demo: TrainNonFinite since 14 Nov 22:13 UTC.")
    assert text.endswith('Layer "a\\b" is $lost.')
    assert body == {"to": ["+491700000000"], "urgent": True, "price": "5$"}
    assert server.metric("relayed_total", relay="sms", result="sent") == 1
    assert server.metric("relayed_total", relay="sms", result="failed") == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("method: GET, query: {to: '1', text: $text}", {"method": "GET", "body": ""}),
        ("form: {to: '1', text: $text}", {"method": "POST", "query": {}}),
        ("method: PUT, json: [$text], query: {to: '1'}", {"method": "PUT", "query": {"to": ["1"]}}),
    ],
)
def test_gateways_of_other_kinds_are_served(
    make_server: Make,
    gateway: Gateway,
    relays: Callable[[str], Path],
    tools: Any,
    settings: str,
    expected: dict[str, Any],
) -> None:
    """The text goes into the address, a form or a document, by the method that the gateway wants."""
    server = make_server(relays=relays(f"version: 1\nrelays:\n  chat: {{url: '{gateway.url}', {settings}}}"))
    assert post(server, "chat", trouble(tools)).status_code == 200
    (request,) = gateway.requests
    assert {key: request[key] for key in expected} == expected
    sent = urllib.parse.unquote_plus(request["body"]) + "".join(request["query"].get("text", []))
    assert DESCRIPTION in sent


def test_a_relay_acts_on_nothing(
    make_server: Make, gateway: Gateway, relays: Callable[[str], Path], tools: Any, home: Any
) -> None:
    """What is passed on to people is no alert for the controller: no episode, no command."""
    home.trainer()
    server = make_server(relays=relays(sms(gateway.url)))
    post(server, "sms", trouble(tools))
    assert server.ask("GET", "/api/v1/episodes").json() == {"episodes": []}
    assert server.ask("GET", "/api/v1/commands").json() == {"commands": []}


@pytest.mark.parametrize(("token", "code"), [("wrong", 401), ("operator-secret-1", 403)])
def test_a_relay_needs_alertmanagers_token(
    make_server: Make, gateway: Gateway, relays: Callable[[str], Path], tools: Any, token: str, code: int
) -> None:
    """Nobody else can send messages in our name."""
    server = make_server(relays=relays(sms(gateway.url)))
    assert post(server, "sms", trouble(tools), token=token).status_code == code
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("status", "answered"), [(500, 502), (503, 502), (429, 502), (400, 422), (401, 422), (302, 422)]
)
def test_alertmanager_is_told_whether_to_try_again(
    make_server: Make,
    gateway: Gateway,
    relays: Callable[[str], Path],
    tools: Any,
    status: int,
    answered: int,
) -> None:
    """What may pass is answered with 5xx, which Alertmanager repeats; what cannot, with 4xx."""
    server = make_server(relays=relays(sms(gateway.url)))
    gateway.status, gateway.answer = status, b"no such\nrecipient"
    response = post(server, "sms", trouble(tools))
    assert response.status_code == answered
    assert f"the gateway of relay 'sms' answered {status} (no such recipient)" in response.json()["error"]
    assert len(gateway.requests) == 1  # a redirect is not followed
    assert server.metric("relayed_total", relay="sms", result="failed") == 1


def test_a_gateway_that_is_gone_is_tried_again_and_its_secrets_are_not_told(
    make_server: Make, gateway: Gateway, relays: Callable[[str], Path], tools: Any
) -> None:
    """A refused connection is answered with 502, without the address, which may hold a key."""
    text = f"""
version: 1
relays:
  robot: {{url: '{gateway.url}', query: {{key: $token}}, json: {{text: $text}}, secrets: {{token: SECRET}}}}
"""
    server = make_server(relays=relays(text))
    gateway.close()
    response = post(server, "robot", trouble(tools))
    assert response.status_code == 502
    assert "cannot be reached (ConnectionError)" in response.json()["error"]
    assert "s3cret" not in response.text


def test_a_gateway_that_does_not_answer_is_given_up(
    make_server: Make, relays: Callable[[str], Path], tools: Any
) -> None:
    """A gateway that accepts and stays silent costs its time limit, and Alertmanager tries again."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        text = f"version: 1\nrelays: {{slow: {{url: '{url}', form: {{t: $text}}, timeout_s: 0.2}}}}"
        response = post(make_server(relays=relays(text)), "slow", trouble(tools))
    assert response.status_code == 502
    assert "(ReadTimeout)" in response.json()["error"]


def test_an_unknown_relay_and_a_foreign_body_are_refused(
    make_server: Make, gateway: Gateway, relays: Callable[[str], Path], tools: Any
) -> None:
    """A relay that is not in the file, or no file at all, is 404; a body that is no webhook is 422."""
    server = make_server(relays=relays(sms(gateway.url)))
    assert post(server, "mail", trouble(tools)).status_code == 404
    assert post(server, "sms", {"version": "3"}).status_code == 422
    assert post(make_server(), "sms", trouble(tools)).status_code == 404
    assert gateway.requests == []


def test_a_gateway_that_always_answers_200_is_believed_only_what_is_expected(
    make_server: Make, gateway: Gateway, relays: Callable[[str], Path], tools: Any
) -> None:
    """Where `expect` is set, an answer without it is a refusal; the secret in the path is quoted."""
    text = f"""
version: 1
relays:
  robot:
    {{url: '{gateway.url}/$token', json: {{t: $text}}, secrets: {{token: SECRET}}, expect: '"errcode":0'}}
"""
    path = relays(text)
    (path.parent / "sms_token").write_text("a/b?c")
    server = make_server(relays=path)
    gateway.answer = b'{"errcode":93000,"errmsg":"invalid webhook url"}'
    response = post(server, "robot", trouble(tools))
    assert response.status_code == 422
    assert "invalid webhook url" in response.json()["error"]
    gateway.answer = b'{"errcode":0,"errmsg":"ok"}'
    assert post(server, "robot", trouble(tools)).status_code == 200
    assert {request["path"] for request in gateway.requests} == {"/send/a%2Fb%3Fc"}


def test_the_example_is_valid() -> None:
    """What docs/notifications.md points to is accepted as it stands."""
    found = load_relays(Path(__file__).resolve().parents[2] / "examples" / "relays.yml")
    assert set(found) == {"sms", "wecom_robot", "feishu"}


def text_of(tools: Any, *alerts: dict[str, Any], max_chars: int = 300) -> dict[str, str]:
    """Return what a relay would fill in for these alerts."""
    return message(Webhook.model_validate_json(json.dumps(tools.webhook(*alerts))), max_chars)


def test_a_text_says_first_what_matters_most(tools: Any) -> None:
    """Severity, run, alerts, since when, what the controller did; then as much of the description as fits."""
    one, other = tools.alert(), tools.alert("TrainHung", starts_at=tools.start + 120.0)
    one["annotations"]["description"] = "Much to say. " * 50
    answer = tools.alert("TrainIntervention", severity="none", state="applied")
    answer["annotations"]["description"] = "TrainNonFinite: pause was carried out. "
    facts = text_of(tools, answer, one, other, max_chars=160)
    assert facts["text"].startswith(
        "CRITICAL demo: TrainHung, TrainNonFinite since 14 Nov 22:13 UTC. "
        "Controller: TrainNonFinite: pause was carried out. Much to say."
    )
    assert len(facts["text"]) <= 160
    assert facts["text"].endswith("…")
    assert facts["alerts"] == "TrainHung, TrainNonFinite"
    assert (facts["run"], facts["status"], facts["severity"]) == ("demo", "firing", "critical")


def test_the_end_of_a_trouble_is_told(tools: Any) -> None:
    """A resolved group says so; while the controller's pause still holds the run, that is said with it."""
    over = tools.alert(status="resolved")
    assert text_of(tools, over)["text"] == "RESOLVED demo: TrainNonFinite"
    answer = tools.alert("TrainIntervention", severity="none", state="applied")
    answer["annotations"]["description"] = "Paused."
    assert text_of(tools, over, answer)["text"] == "RESOLVED demo: TrainNonFinite Controller: Paused."
    assert text_of(tools, answer)["text"] == "ANSWERED demo: Controller: Paused."


def test_many_runs_and_alerts_stay_short(tools: Any) -> None:
    """Beyond three names there is only their number."""
    alerts = [tools.alert(f"Train{letter}", run=f"run-{letter}", severity="warning") for letter in "abcde"]
    facts = text_of(tools, *alerts)
    assert facts["run"] == "run-a, run-b, run-c and 2 more"
    assert facts["alerts"] == "Traina, Trainb, Trainc and 2 more"
    assert facts["severity"] == "warning"


@pytest.mark.parametrize(
    ("relay", "sentence"),
    [
        ("url: ftp://x/, form: {t: $text}", "write the gateway's whole address"),
        ("url: 'https://me:pw@x/', form: {t: $text}", "a password does not belong into the address"),
        ("url: https://x/, form: {t: hello}", "$text is nowhere"),
        ("url: https://x/", "$text is nowhere"),
        ("url: https://x/, form: {t: $text}, json: {t: $text}", "json and form exclude each other"),
        ("url: https://x/, method: GET, form: {t: $text}", "a GET has no body"),
        ("url: https://x/, form: {t: $text $txt}", "$txt stands for nothing"),
        (
            "url: https://x/, form: {t: $text}, headers: {X: $text}",
            "$text stands for nothing in url and headers",
        ),
        ("url: https://x/, form: {t: $text costs 5$}", "a lone '$'"),
        ("url: https://x/, form: {t: $text}, secrets: {key: /k}", "the secret 'key' is used nowhere"),
        ("url: https://x/, form: {t: $text}, secrets: {run: /k}", "$run is what is sent"),
        ("url: https://x/, form: {t: $text}, timeout: 3", "did you mean 'timeout_s'?"),
        ("url: https://x/, form: {t: $text}, max_chars: 10", "max_chars = 10"),
    ],
)
def test_a_relay_that_cannot_work_is_refused_at_the_start(
    relays: Callable[[str], Path], relay: str, sentence: str
) -> None:
    """A wrong setting is named with its file, before the first alert finds it out."""
    path = relays(f"version: 1\nrelays: {{sms: {{{relay}}}}}")
    with pytest.raises(RelayFileError) as caught:
        load_relays(path)
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["relays: [", "- a\n", "", "version: 1\nrelays: {}"])
def test_a_file_without_relays_is_refused(relays: Callable[[str], Path], text: str) -> None:
    """Broken YAML and a file with nothing in it are named by the file."""
    with pytest.raises(RelayFileError, match=r"relays\.yml"):
        load_relays(relays(text))
    with pytest.raises(RelayFileError, match="cannot be read: No such file"):
        load_relays(Path("/no/such/relays.yml"))


def test_a_secret_that_others_can_read_is_refused_at_the_start(
    make_controller: Make, gateway: Gateway, relays: Callable[[str], Path], tmp_path: Path
) -> None:
    """A relay's secret is kept like the controller's own tokens."""
    path = relays(sms(gateway.url))
    (tmp_path / "sms_token").chmod(0o644)
    with pytest.raises(TokenError, match=r"relay sms token file .* mode 0644"):
        make_controller(relays=path)


def test_a_new_secret_holds_without_a_restart(
    make_server: Make, gateway: Gateway, relays: Callable[[str], Path], tools: Any, tmp_path: Path
) -> None:
    """The file is read again when it has changed."""
    server = make_server(relays=relays(sms(gateway.url)))
    post(server, "sms", trouble(tools))
    (tmp_path / "sms_token").write_text(f"new-{time.time_ns()}")
    post(server, "sms", trouble(tools))
    first, second = (request["headers"]["Authorization"] for request in gateway.requests)
    assert first == "Bearer s3cret"
    assert second.startswith("Bearer new-")


def test_runbooks_are_served_and_nothing_else_is(make_server: Make) -> None:
    """A notification's link leads to the page of its alert, without a token; no other file can be had."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
    client = make_server(runbooks_dir=folder).client
    response = client.get("/runbooks/TrainNonFinite")
    assert response.text == (folder / "TrainNonFinite.md").read_text(encoding="utf-8")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    for name in ("TrainUnheardOf", "..%2F..%2Fpyproject", "..%2Fcontroller", "TrainNonFinite.md", "%00"):
        assert client.get(f"/runbooks/{name}").status_code == 404
    assert make_server().client.get("/runbooks/TrainNonFinite").status_code == 404
