"""Messages as they leave a real Alertmanager: Slack, WeCom, e-mail, and SMS through the controller."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.policy
import http.server
import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiosmtpd.controller import Controller as SmtpServer
from aiosmtpd.smtp import SMTP, Envelope, Session

from trainswitch_controller.app import create_app
from trainswitch_controller.cli.stack.binaries import find_binaries
from trainswitch_controller.settings import parse_settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parents[2]
RUN = "gpt2-wikitext"
NON_FINITE = "Run gpt2-wikitext has counted 3 steps with a non-finite value; the limit is 0."
ANSWER = "TrainNonFinite: pause was carried out. Paused runs wait for 'trainswitch resume gpt2-wikitext'."


class Inbox:
    """What arrived, by channel; `wait` returns as soon as there is enough."""

    def __init__(self) -> None:
        self._arrived: dict[str, list[Any]] = {}
        self._changed = threading.Condition()

    def put(self, channel: str, item: Any) -> None:
        """Note what arrived."""
        with self._changed:
            self._arrived.setdefault(channel, []).append(item)
            self._changed.notify_all()

    def wait(self, channel: str, count: int = 1) -> list[Any]:
        """Return what arrived on `channel` once there are `count` of it."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self._arrived.get(channel, [])) >= count, timeout=40)
            assert enough, f"{channel}: {self._arrived.get(channel)}"
            return list(self._arrived[channel])


@pytest.fixture
def inbox() -> Inbox:
    """Where all channels of a test end."""
    return Inbox()


@pytest.fixture
def web(inbox: Inbox) -> Iterator[str]:
    """Slack, WeCom and an SMS gateway as one HTTP server; returns its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path.startswith("/wecom/gettoken"):
                answer = {"errcode": 0, "access_token": "a-token"}
            else:
                inbox.put(self.path.split("/")[1], json.loads(body))
                answer = {"errcode": 0}
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer  # noqa: N815 - names of http.server

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def smtp(inbox: Inbox) -> Iterator[int]:
    """A mail server; returns its port."""

    class Handler:
        async def handle_DATA(  # noqa: N802 - the name that aiosmtpd calls
            self, _server: SMTP, _session: Session, envelope: Envelope
        ) -> str:
            assert isinstance(envelope.content, bytes)
            inbox.put("mail", email.message_from_bytes(envelope.content, policy=email.policy.default))
            return "250 taken"

    server = SmtpServer(Handler(), hostname="127.0.0.1", port=_free_port())
    server.start()
    yield server.port
    server.stop()


@pytest.fixture
def controller(tmp_path: Path, web: str) -> Iterator[tuple[str, Path]]:
    """A controller with a relay to the SMS gateway; returns its address and Alertmanager's token file."""
    import uvicorn

    for role in ("alertmanager", "operator"):
        (tmp_path / role).write_text(f"token-of-{role}")
        (tmp_path / role).chmod(0o600)
    (tmp_path / "control").mkdir()
    relays = {"version": 1, "relays": {"sms": {"url": f"{web}/sms", "json": {"text": "$text"}}}}
    (tmp_path / "relays.yml").write_text(json.dumps(relays))
    app = create_app(
        parse_settings(
            {
                "control_dir": tmp_path / "control",
                "journal_url": f"sqlite:///{tmp_path}/journal.db",
                "policy": ROOT / "policies" / "conservative.yml",
                "alertmanager_token_file": tmp_path / "alertmanager",
                "operator_token_file": tmp_path / "operator",
                "relays": tmp_path / "relays.yml",
            }
        )
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", tmp_path / "alertmanager"
        server.should_exit = True
        thread.join(timeout=20)


def configuration(web: str, smtp: int, controller: tuple[str, Path], secrets: Path) -> str:
    """Return alertmanager.yml with every channel on, sent sooner, and to the servers of this test."""
    head, mark, channels = (
        (ROOT / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8").partition("  ## Critical")
    )
    document = yaml.safe_load(head + mark + re.sub(r"^    # ", "    ", channels, flags=re.MULTILINE))
    document["templates"] = [str(ROOT / "alertmanager" / "templates" / "*.tmpl")]
    receivers = {one["name"]: one for one in document["receivers"]}
    url, token_file = controller
    for receiver in receivers.values():
        for webhook in receiver.get("webhook_configs", []):
            webhook["url"] = webhook["url"].replace("http://controller:9095", url)
            webhook["http_config"]["authorization"]["credentials_file"] = str(token_file)
        for mail in receiver.get("email_configs", []):
            for key in ("auth_username", "auth_password_file"):  # over TLS only; anchors are one object
                mail.pop(key, None)
            mail.update(smarthost=f"127.0.0.1:{smtp}", require_tls=False)
    (secrets / "slack").write_text(f"{web}/slack")
    receivers["page"]["slack_configs"][0]["api_url_file"] = str(secrets / "slack")
    receivers["page"]["wechat_configs"][0]["api_url"] = f"{web}/wecom/"
    for route in (document["route"], *document["route"]["routes"]):
        if route["receiver"] != "controller":
            route.update(group_wait="1s", group_interval="1s")
    return yaml.safe_dump(document)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextlib.contextmanager
def running_alertmanager(folder: Path, config: str) -> Iterator[str]:
    """Run Alertmanager with `config`, and yield its address once it is ready."""
    (folder / "alertmanager.yml").write_text(config)
    url = f"http://127.0.0.1:{_free_port()}"
    log = (folder / "alertmanager.log").open("wb")
    process = subprocess.Popen(
        [
            str(find_binaries()["alertmanager"]),
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder / 'data'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            "--web.external-url=http://alerts.example.org",
            "--web.route-prefix=/",
            "--cluster.listen-address=",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/-/ready", timeout=2).close()
                break
            assert process.poll() is None, (folder / "alertmanager.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)
        log.close()


def alert(name: str, severity: str, description: str, *, over: bool = False, **labels: str) -> dict[str, Any]:
    """Return an alert as Prometheus posts it."""
    now = dt.datetime.now(dt.timezone.utc)
    ends = now if over else now + dt.timedelta(minutes=5)
    return {
        "labels": {"alertname": name, "severity": severity, "run": RUN, **labels},
        "annotations": {"description": description, "runbook_url": f"docs/runbooks/{name}.md"},
        "startsAt": (now - dt.timedelta(seconds=30)).isoformat(),
        "endsAt": ends.isoformat(),
        "generatorURL": "http://prometheus:9090/graph",
    }


def post(url: str, *alerts: dict[str, Any]) -> None:
    """Hand alerts to Alertmanager."""
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.status == 200


@pytest.fixture
def alertmanager(
    tmp_path: Path, web: str, smtp: int, controller: tuple[str, Path]
) -> Iterator[Callable[..., None]]:
    """A real Alertmanager with all channels on; returns what posts alerts to it."""
    assert shutil.which("amtool")
    folder = tmp_path / "alertmanager-home"
    folder.mkdir()
    with running_alertmanager(folder, configuration(web, smtp, controller, folder)) as url:
        yield lambda *alerts: post(url, *alerts)


def test_a_page_reaches_every_channel_with_the_controllers_answer_and_its_end(
    alertmanager: Callable[..., None], inbox: Inbox
) -> None:
    """A critical alert and its answer are one message in Slack, WeCom and SMS; so is their end."""
    trouble = ("TrainNonFinite", "critical", NON_FINITE)
    answer = ("TrainIntervention", "none", ANSWER)
    alertmanager(alert(*trouble, action="pause"), alert(*answer, state="applied"))

    (slack,) = inbox.wait("slack")
    (attachment,) = slack["attachments"]
    assert attachment["title"] == f"CRITICAL {RUN}: TrainNonFinite"
    assert attachment["color"] == "danger"
    assert attachment["title_link"].startswith(f"http://localhost:3000/d/trainswitch-run?var-run={RUN}&from=")
    assert NON_FINITE in attachment["text"]
    assert f"*Controller*: {ANSWER}" in attachment["text"]
    assert "<http://alerts.example.org/#/silences/new?filter=%7Balertname" in attachment["text"]

    (wecom,) = inbox.wait("wecom")
    assert wecom["msgtype"] == "markdown"
    content = wecom["markdown"]["content"]
    assert content.startswith(f"**CRITICAL {RUN}: TrainNonFinite**")
    assert NON_FINITE in content
    assert ANSWER in content

    (sms,) = inbox.wait("sms")
    assert sms["text"].startswith(f"CRITICAL {RUN}: TrainNonFinite since ")
    assert f"Controller: {ANSWER}" in sms["text"]

    alertmanager(alert(*trouble, over=True, action="pause"), alert(*answer, over=True, state="applied"))
    attachment = inbox.wait("slack", 2)[1]["attachments"][0]
    assert attachment["title"] == f"RESOLVED {RUN}: TrainNonFinite"
    assert attachment["color"] == "good"
    assert "Resolved: TrainNonFinite, lasted " in attachment["text"]
    assert inbox.wait("sms", 2)[1]["text"] == f"RESOLVED {RUN}: TrainNonFinite"
    assert "RESOLVED" in inbox.wait("wecom", 2)[1]["markdown"]["content"]


def test_a_warning_comes_by_mail_as_text_and_as_html(alertmanager: Callable[..., None], inbox: Inbox) -> None:
    """A message of two parts with a subject that names run and alert; two warnings of a run are one."""
    alertmanager(
        alert("TrainDataStarved", "warning", "Waits for data in 40% of the time; the limit is 30%."),
        alert("TrainCheckpointStale", "warning", "The newest checkpoint is 2h old; the limit is 1h."),
    )
    message = inbox.wait("mail")[0]
    assert isinstance(message, EmailMessage)
    assert message["Subject"] == f"WARNING {RUN}: TrainCheckpointStale, TrainDataStarved"
    text, html = (message.get_body(preferencelist=(kind,)) for kind in ("plain", "html"))
    assert text is not None
    assert html is not None
    assert "Waits for data in 40% of the time; the limit is 30%." in text.get_content()
    assert "The newest checkpoint is 2h old; the limit is 1h." in html.get_content()
    assert f'href="http://localhost:3000/d/trainswitch-run?var-run={RUN}' in html.get_content()


def test_a_cause_mutes_its_consequences(alertmanager: Callable[..., None], inbox: Inbox) -> None:
    """Of a run with NaN neither consequences nor its own warning are told; what else is wrong is."""
    alertmanager(alert("TrainNonFinite", "critical", NON_FINITE, action="pause"))
    inbox.wait("slack")
    alertmanager(
        alert("TrainNonFinite", "critical", NON_FINITE, action="pause"),
        alert("TrainLossScaleCollapsed", "warning", "Muted by the cause."),
        alert("TrainNonFinite", "warning", "Muted by its own critical alert."),
        alert("TrainDataStarved", "warning", "Told all the same."),
    )
    said = inbox.wait("mail")[0].get_body(preferencelist=("plain",)).get_content()
    assert "Told all the same." in said
    assert "Muted" not in said
