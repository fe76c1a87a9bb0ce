"""Fixtures of the controller's tests: a home, a controller with a clock, a real server, a minimal trainer."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from trainswitch.intervention.commands import CommandOutcome, CommandResult
from trainswitch.intervention.control_file import (
    StatusFile,
    commands_path,
    read_commands,
    read_status,
    status_path,
    write_control_file,
)
from trainswitch_controller import views
from trainswitch_controller.alerts import Webhook
from trainswitch_controller.app import create_app
from trainswitch_controller.connections import BoundedServer
from trainswitch_controller.records import DecisionRecord
from trainswitch_controller.service import Controller
from trainswitch_controller.serving import server_config
from trainswitch_controller.settings import Settings, parse_settings

POLICY = """
version: 1
cooldown: 0s
alerts:
  TrainNonFinite:
    ladder: [{action: pause}]
  TrainLossUnstable:
    ladder:
      - {action: reduce_lr, params: {factor: 0.5}}
      - {action: rollback}
"""

START = 1_700_000_000.0


@dataclasses.dataclass
class Home:
    """A controller's files below one folder, and the settings that name them."""

    folder: Path
    alertmanager_token: str = "alertmanager-secret"
    operator_token: str = "operator-secret-1"

    def __post_init__(self) -> None:
        self.control = self.folder / "control"
        self.control.mkdir()
        self.write_policy(POLICY)
        for role, token in (("alertmanager", self.alertmanager_token), ("operator", self.operator_token)):
            path = self.folder / f"{role}.token"
            path.write_text(f"{token}\n")
            path.chmod(0o600)

    def write_policy(self, text: str) -> Path:
        """Make `text` the policy."""
        path = self.folder / "policy.yml"
        path.write_text(text)
        return path

    def settings(self, **changes: Any) -> Settings:
        """Return settings that name this home's files."""
        values: dict[str, Any] = {
            "control_dir": self.control,
            "journal_url": f"sqlite:///{self.folder / 'journal.db'}?timeout=0.2",
            "policy": self.folder / "policy.yml",
            "alertmanager_token_file": self.folder / "alertmanager.token",
            "operator_token_file": self.folder / "operator.token",
            "poll_interval_s": 0.02,
        }
        return parse_settings({**values, **changes})

    def trainer(self, run: str = "demo") -> Trainer:
        """Start a minimal trainer, which makes its run folder."""
        return Trainer(self.control, run)


class Trainer:
    """The trainer's side of the protocol and nothing else; remembers what it carried out."""

    def __init__(self, control: Path, run: str) -> None:
        self.control = control
        self.run = run
        self.carried_out: list[str] = []
        self.answers: CommandResult = "applied"
        (control / run).mkdir(exist_ok=True)
        old = read_status(status_path(control, run), run)
        self.results: list[CommandOutcome] = list(old.results) if old else []
        self.applied_seq = old.applied_seq if old else 0
        self.session = uuid.uuid4().hex
        self.write()

    def commands(self) -> list[dict[str, Any]]:
        """The commands in ``commands.json`` as plain objects."""
        found = read_commands(commands_path(self.control, self.run), self.run)
        return [command.model_dump() for command in found.commands] if found else []

    def poll(self) -> None:
        """Carry out what is new, as a trainer does at a step boundary."""
        found = read_commands(commands_path(self.control, self.run), self.run)
        for command in found.commands if found else ():
            if command.seq <= self.applied_seq:
                continue
            self.carried_out.append(command.id)
            self.applied_seq = command.seq
            self.results.append(
                CommandOutcome(
                    id=command.id,
                    seq=command.seq,
                    action=command.action,
                    result=self.answers,
                    step=100,
                    at=time.time() if command.issued_at > START + 1e6 else command.issued_at + 1.0,
                    detail="done",
                )
            )
            self.write()

    def write(self, **changes: Any) -> None:
        """Write ``status.json``."""
        values: dict[str, Any] = {
            "run": self.run,
            "session": self.session,
            "state": "running",
            "step": 100,
            "applied_seq": self.applied_seq,
            "results": tuple(self.results[-200:]),
            "updated_at": time.time(),
            "pid": 1,
            "node": "here",
        }
        write_control_file(status_path(self.control, self.run), StatusFile(**{**values, **changes}))


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        """Return the time in Unix seconds."""
        return self.time


def alert(
    name: str = "TrainNonFinite",
    run: str | None = "demo",
    *,
    starts_at: float = START,
    status: str = "firing",
    fingerprint: str | None = None,
    **labels: str,
) -> dict[str, Any]:
    """One alert as Alertmanager sends it; its fingerprint follows from its labels, as there."""
    all_labels = {
        "alertname": name,
        "severity": "critical",
        **({"run": run} if run is not None else {}),
        **labels,
    }
    named = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(all_labels, sort_keys=True)).hex[:16]
    return {
        "status": status,
        "labels": all_labels,
        "annotations": {"summary": "Loss or gradients are not finite."},
        "startsAt": _rfc3339(starts_at),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": fingerprint or named,
    }


def webhook(*alerts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """One delivery as Alertmanager sends it."""
    body = {
        "version": "4",
        "groupKey": "{}:{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "controller",
        "groupLabels": {},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "",
        "alerts": list(alerts),
    }
    return {**body, **changes}


def _rfc3339(at: float) -> str:
    whole, part = divmod(round(at * 1e6), 10**6)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{part:06d}Z"


class Server:
    """The real application on a real uvicorn in a thread, and a client for it."""

    def __init__(self, home: Home, settings: Settings) -> None:
        self.home = home
        self.app = app = create_app(settings)
        self._server = BoundedServer(server_config(app, settings))
        self.controller: Controller = app.state.controller
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        wait_for(lambda: self._server.started or not self._thread.is_alive())
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=10)

    def post(self, content: Any, token: str | None = None, **options: Any) -> httpx.Response:
        """POST to the webhook, as Alertmanager unless `token` says otherwise."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        bearer = {"Authorization": f"Bearer {self.home.alertmanager_token if token is None else token}"}
        return self.client.post("/api/v1/alerts", content=body, headers=bearer, **options)

    def fire(self, *alerts: dict[str, Any]) -> list[dict[str, Any]]:
        """Deliver alerts and return their outcomes."""
        response = self.post(webhook(*alerts))
        assert response.status_code == 200, response.text
        outcomes: list[dict[str, Any]] = response.json()["outcomes"]
        return outcomes

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request with the operator's token."""
        bearer = {"Authorization": f"Bearer {self.home.operator_token}"}
        return self.client.request(method, path, headers=bearer, **options)

    def command(self, command_id: str) -> dict[str, Any]:
        """Return one command as the API shows it."""
        found: dict[str, Any] = self.ask("GET", f"/api/v1/commands/{command_id}").json()["command"]
        return found

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of one of the controller's metrics."""
        return self.controller.metrics.registry.get_sample_value(f"trainswitch_controller_{name}", labels)

    def stop(self) -> None:
        """End the server and wait for it."""
        self.client.close()
        self._server.should_exit = True
        self._thread.join(timeout=20)
        self._socket.close()
        assert not self._thread.is_alive()


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return as soon as `condition` holds, and fail if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@dataclasses.dataclass
class Loop:
    """One controller with its tools, driven by hand."""

    controller: Controller
    tools: Any
    clock: Any

    def fire(self, name: str = "TrainNonFinite", **of: Any) -> str:
        """Deliver one alert that begins now and return its outcome."""
        of.setdefault("starts_at", self.clock.time)
        body = self.tools.webhook(self.tools.alert(name, **of))
        receipt = self.controller.deliver(Webhook.model_validate_json(json.dumps(body)))
        return receipt.judged[0].outcome

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, then look."""
        self.clock.time += seconds
        self.controller._dispatcher.tick()

    def commands(self) -> list[dict[str, Any]]:
        """Every command, oldest first."""
        found = self.controller.journal.read(lambda session: views.commands(session, None, 1000))
        return sorted(found, key=lambda command: command["created_at"])

    def decided(self, alertname: str) -> list[str]:
        """Return the outcome of every decision about an alert, oldest first."""
        query = select(DecisionRecord.outcome).where(DecisionRecord.alertname == alertname)
        rows = query.order_by(DecisionRecord.id)
        return list(self.controller.journal.read(lambda session: session.scalars(rows).all()))

    def states(self) -> list[tuple[str, str]]:
        """Return action and state of every command, oldest first."""
        return [(command["action"], command["state"]) for command in self.commands()]

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of one of the controller's metrics."""
        return self.controller.metrics.registry.get_sample_value(f"trainswitch_controller_{name}", labels)


@dataclasses.dataclass
class Tools:
    """The functions above, for tests: pytest's importlib mode shares no modules between them."""

    home = Home
    clock = Clock
    loop = Loop
    alert = staticmethod(alert)
    webhook = staticmethod(webhook)
    wait_for = staticmethod(wait_for)
    start = START
    now = staticmethod(time.time)


@pytest.fixture(scope="session")
def tools() -> Tools:
    """Builders of alerts and deliveries."""
    return Tools()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A controller's home with a policy whose cooldown is zero."""
    return Home(tmp_path)


@pytest.fixture
def clock() -> Clock:
    """A clock that tests move."""
    return Clock()


@pytest.fixture
def make_controller(home: Home, clock: Clock) -> Iterator[Callable[..., Controller]]:
    """Build controllers without a thread: tests call ``tick`` themselves. Each has made its first tick."""
    made: list[Controller] = []

    def make(**changes: Any) -> Controller:
        controller = Controller(home.settings(**changes), now=clock)
        controller._dispatcher.look()
        made.append(controller)
        return controller

    yield make
    for controller in made:
        controller.journal.close()


@pytest.fixture
def make_loop(make_controller: Callable[..., Controller], tools: Any, clock: Any) -> Callable[..., Loop]:
    """Build a controller in a loop that the test drives."""
    return lambda **changes: Loop(make_controller(**changes), tools, clock)


@pytest.fixture
def make_server(home: Home) -> Iterator[Callable[..., Server]]:
    """Start real servers; they are stopped after the test."""
    made: list[Server] = []

    def make(**changes: Any) -> Server:
        made.append(Server(home, home.settings(**changes)))
        return made[-1]

    yield make
    for server in made:
        server.stop()
