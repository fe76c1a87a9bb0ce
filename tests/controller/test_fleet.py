"""Several controllers on one PostgreSQL: one leads, another takes its place, nothing is lost or doubled."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy.orm import Session

from trainswitch.intervention.control_file import commands_path, read_commands
from trainswitch_controller import views
from trainswitch_controller.alerts import Webhook
from trainswitch_controller.errors import JournalError, LeadershipLost
from trainswitch_controller.service import Controller

SCRIPT = """
import sys
from trainswitch_controller.serving import serve
from trainswitch_controller.settings import Settings
sys.exit(serve(Settings.model_validate_json(sys.argv[1])))
"""
NAMES = [f"Trouble{number}" for number in range(5)]
POLICY = "version: 1\ncooldown: 0s\nbudget:\n  per_run: {{interventions: {budget}, window: 1h}}\n" + (
    "  global: {{interventions: 10000, window: 1h}}\nalerts:\n"
    + "".join(f"  {name}: {{{{ladder: [{{{{action: snapshot}}}}]}}}}\n" for name in NAMES)
)
TAKEOVER_S = 10.0
"""It takes 3 to 4 s where the machine has nothing else to do."""


@dataclasses.dataclass
class Cluster:
    """A PostgreSQL server of the tests' own, reached over a socket in its folder."""

    folder: str
    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def database(self) -> str:
        """Make an empty database and return its URL."""
        name = f"journal{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://trainswitch@/{name}?host={self.folder}"

    def execute(self, statement: str) -> list[Any]:
        """Run one statement and return its rows."""
        with psycopg.connect(
            host=self.folder, user="trainswitch", dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server that lives as long as the tests of this file."""
    folder = tempfile.mkdtemp(prefix="trainswitch-postgresql-")
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        account = pwd.getpwnam("postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
        as_user = ["runuser", "-u", account.pw_name, "--"]
    data = f"{folder}/data"

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [*as_user, server_program(program), "-D", data, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )

    run("initdb", "-A", "trust", "-U", "trainswitch", "--no-sync")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", options, "start")
    yield Cluster(folder)
    run("pg_ctl", "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder)


def server_program(name: str) -> str:
    """Return the path of one of PostgreSQL's programs, which Debian keeps off PATH."""
    packaged = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    found = shutil.which(name) or (packaged[-1] if packaged else None)
    assert found is not None, f"there is no {name}: run scripts/setup --dev"
    return str(found)


class Replica:
    """One controller in a process of its own."""

    def __init__(self, home: Any, tools: Any, journal_url: str) -> None:
        self._home = home
        self._tools = tools
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = home.settings(port=port, journal_url=journal_url, poll_interval_s=0.1)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10)
        with (home.folder / f"controller-{port}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, settings.model_dump_json()],
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        tools.wait_for(self.is_ready, 30)

    def is_ready(self) -> bool:
        """Return whether it can do its work, which includes to follow."""
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/-/ready").status_code == 200
        return False

    def deliver(self, body: Any) -> bool:
        """Deliver as Alertmanager does, and return whether it was answered with 200."""
        bearer = {"Authorization": f"Bearer {self._home.alertmanager_token}"}
        with contextlib.suppress(httpx.TransportError):
            return self.client.post("/api/v1/alerts", json=body, headers=bearer).status_code == 200
        return False

    def commands(self) -> list[dict[str, Any]]:
        """Return every command of the journal."""
        bearer = {"Authorization": f"Bearer {self._home.operator_token}"}
        answer = self.client.get("/api/v1/commands?limit=1000", headers=bearer)
        commands: list[dict[str, Any]] = answer.json()["commands"]
        return commands

    def metric(self, name: str) -> dict[str, float]:
        """Return the samples of one of its metrics by their labels."""
        lines = self.client.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if line.startswith(f"trainswitch_controller_{name}"))
        return {labels: float(value) for labels, _, value in found}

    def leads(self) -> bool:
        """Return whether it says that it leads."""
        return self.metric("leader") == {"trainswitch_controller_leader": 1.0}

    def end(self) -> None:
        """End it without warning."""
        self.process.kill()
        self.process.wait()
        self.client.close()


@pytest.fixture
def start(home: Any, tools: Any) -> Iterator[Callable[[str], Replica]]:
    """Start replicas; they are killed after the test."""
    started: list[Replica] = []

    def run(journal_url: str) -> Replica:
        started.append(Replica(home, tools, journal_url))
        return started[-1]

    yield run
    for replica in started:
        replica.end()


class Trainers:
    """Trainers that poll in a thread, and the highest epoch that each has seen."""

    def __init__(self, home: Any, runs: int) -> None:
        self.all = [home.trainer(f"run{number}") for number in range(runs)]
        self.refused = 0
        """Files of an earlier epoch than one before."""
        self._epochs = dict.fromkeys((trainer.run for trainer in self.all), 0)
        self._seen: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._ended.wait(0.03):
            for trainer in self.all:
                path = commands_path(trainer.control, trainer.run)
                changed = path.stat().st_mtime_ns if path.exists() else 0
                if changed != self._seen.get(trainer.run, 0):
                    self._seen[trainer.run] = changed
                    self._read(trainer)

    def _read(self, trainer: Any) -> None:
        found = read_commands(commands_path(trainer.control, trainer.run), trainer.run)
        assert found is not None
        if found.epoch < self._epochs[trainer.run]:
            self.refused += 1  # as a trainer does: fenced off
        else:
            self._epochs[trainer.run] = found.epoch
            trainer.poll()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()


@pytest.fixture
def trainers(home: Any) -> Iterator[Trainers]:
    """12 runs."""
    trainers = Trainers(home, 12)
    yield trainers
    trainers.end()


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return soon after `condition` holds; asking costs the controllers time, so it is asked rarely."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def until_taken(replica: Replica, body: Any) -> None:
    """Deliver as often as it takes, as Alertmanager does while a receiver exists."""
    while replica.process.poll() is None and not replica.deliver(body):
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_another_takes_over(
    number: signal.Signals,
    home: Any,
    tools: Any,
    cluster: Cluster,
    start: Callable[[str], Replica],
    trainers: Trainers,
) -> None:
    """The leader dies, or stands still, amid 60 alerts that reach both: each is acted on exactly once."""
    home.write_policy(POLICY.format(budget=1000))
    url = cluster.database()
    leader, follower = start(url), start(url)
    assert (leader.leads(), follower.leads()) == (True, False)
    began = time.time()
    bodies = [
        tools.webhook(tools.alert(name, run=trainer.run, starts_at=began))
        for name in NAMES
        for trainer in trainers.all
    ]
    taken_over: list[float] = []

    def strike() -> None:
        eventually(lambda: len(follower.commands()) > 20)
        leader.process.send_signal(number)
        struck = time.monotonic()
        eventually(follower.leads)
        taken_over.append(time.monotonic() - struck)
        if number == signal.SIGSTOP:
            leader.process.send_signal(signal.SIGCONT)

    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        striking = pool.submit(strike)
        given = [pool.submit(until_taken, to, body) for body in bodies for to in (leader, follower)]
        for one in (striking, *given):
            one.result()
    eventually(lambda: {one["state"] for one in follower.commands()} == {"applied"}, 60)

    commands = follower.commands()
    assert taken_over[0] < TAKEOVER_S
    assert sorted((one["run"], one["alertname"]) for one in commands) == sorted(
        (trainer.run, name) for trainer in trainers.all for name in NAMES
    )
    assert sorted(one["id"] for one in commands) == sorted(
        done for trainer in trainers.all for done in trainer.carried_out
    )
    # The new leader speaks for both, also of what the former one took in.
    assert len([one for one in follower.metric("response_") if 'state="applied"' in one]) == len(bodies)
    if number == signal.SIGSTOP:
        eventually(lambda: leader.metric("leader") == {"trainswitch_controller_leader": 0.0})
        assert leader.is_ready()
        assert leader.metric("response_timestamp") == {}
        assert leader.deliver(bodies[0])


def test_a_follower_takes_orders_and_alerts(
    home: Any, tools: Any, cluster: Cluster, start: Callable[[str], Replica], trainers: Trainers
) -> None:
    """What the controller that follows was told, the leader writes, and tells of."""
    url = cluster.database()
    leader, follower = start(url), start(url)
    bearer = {"Authorization": f"Bearer {home.operator_token}"}
    order = {"action": "snapshot"}
    ordered = follower.client.post("/api/v1/runs/run0/commands", json=order, headers=bearer)
    assert ordered.status_code == 202
    eventually(lambda: [one["state"] for one in follower.commands()] == ["applied"])
    assert follower.deliver(tools.webhook(tools.alert(run="run1", starts_at=time.time())))
    eventually(lambda: any('state="applied"' in one for one in leader.metric("response_timestamp")))
    assert follower.metric("response_timestamp") == {}


@pytest.fixture
def make_pair(
    make_controller: Callable[..., Controller], cluster: Cluster
) -> Iterator[Callable[[], tuple[Controller, Controller]]]:
    """Build two controllers without threads on one new database; the first one leads."""
    made: list[Controller] = []

    def make() -> tuple[Controller, Controller]:
        url = cluster.database()
        pair = make_controller(journal_url=url), make_controller(journal_url=url)
        made.extend(pair)
        return pair

    yield make
    for controller in made:
        controller._dispatcher._leadership.release()


def fire(
    controller: Controller, tools: Any, clock: Any, name: str = "TrainNonFinite", run: str = "demo"
) -> None:
    """Deliver one alert to `controller` that begins now."""
    body = tools.webhook(tools.alert(name, run=run, starts_at=clock.time))
    controller.deliver(Webhook.model_validate_json(json.dumps(body)))


def test_writers_of_all_controllers_wait_for_each_other(tools: Any, cluster: Cluster, make_pair: Any) -> None:
    """One decides at a time: what another one is deciding by does not change meanwhile."""
    first, second = make_pair()
    entered, released = threading.Event(), threading.Event()

    def hold(_session: Session) -> None:
        entered.set()
        assert released.wait(20)

    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        holding = pool.submit(first.journal.write, hold)
        assert entered.wait(20)
        other = pool.submit(second.journal.write, lambda _session: released.is_set())
        tools.wait_for(lambda: other.done() or cluster.execute(waiting))
        released.set()
        assert other.result()
        holding.result()


def test_a_budget_holds_across_controllers(home: Any, tools: Any, clock: Any, make_pair: Any) -> None:
    """Alerts that reach two controllers at the same instant spend one budget between them."""
    home.write_policy(POLICY.format(budget=3))
    pair = make_pair()
    runs = [home.trainer(f"run{number}").run for number in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        given = [
            pool.submit(fire, pair[(place + number) % 2], tools, clock, name, run)
            for place, name in enumerate(NAMES)
            for number, run in enumerate(runs)
        ]
        for one in given:
            one.result()
    for run in runs:
        commands = pair[0].journal.read(lambda session, run=run: views.commands(session, run, 100))
        actions = [one["action"] for one in commands]
        assert sorted(actions) == ["pause", "snapshot", "snapshot", "snapshot"]
        assert sorted(one["seq"] for one in commands) == [1, 2, 3, 4]


def end_sessions_that_lead(cluster: Cluster) -> None:
    """Have the server end every session that holds a lock, as it does with one that stands still."""
    cluster.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_locks WHERE locktype = 'advisory'")


def written_epoch(home: Any) -> int:
    """Return the epoch of the run's command file."""
    found = read_commands(commands_path(home.control, "demo"), "demo")
    assert found is not None
    return found.epoch


def test_a_leader_that_lost_its_session_writes_nothing(
    home: Any, tools: Any, clock: Any, cluster: Cluster, make_pair: Any
) -> None:
    """The server ends the leader's session, another one leads: the first notices before it writes."""
    home.trainer()
    first, second = make_pair()
    assert (first._dispatcher.epoch, second._dispatcher.epoch) == (1, None)
    end_sessions_that_lead(cluster)
    second._dispatcher.look()
    assert second._dispatcher.epoch == 2
    fire(first, tools, clock)
    first._dispatcher.look()
    assert (first._dispatcher.epoch, first.problems()) == (None, [])
    assert not commands_path(home.control, "demo").exists()
    second._dispatcher.look()
    assert written_epoch(home) == 2


def test_a_leader_that_is_replaced_while_it_looks_writes_nothing(
    home: Any, tools: Any, clock: Any, cluster: Cluster, make_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one begins its term between a leader's look at the journal and its write: it asks again."""
    home.trainer()
    first, second = make_pair()
    fire(first, tools, clock)

    def replaced(_run: str, commands: Any) -> Any:
        end_sessions_that_lead(cluster)
        assert second._dispatcher._leads()
        return commands

    monkeypatch.setattr(first._dispatcher._carrier, "_expire", replaced)
    first._dispatcher.look()
    assert not commands_path(home.control, "demo").exists()
    assert (first._dispatcher.epoch, first._dispatcher.follows) == (None, True)
    second._dispatcher.look()
    assert written_epoch(home) == 2


def test_a_leader_that_errs_about_itself_is_fenced(
    home: Any, tools: Any, clock: Any, cluster: Cluster, make_pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that goes on in the belief that it leads changes nothing once a later term has begun."""
    trainer = home.trainer()
    first, second = make_pair()
    fire(first, tools, clock)
    first._dispatcher.tick()
    trainer.poll()
    end_sessions_that_lead(cluster)
    second._dispatcher._reconcile()
    monkeypatch.setattr(first._dispatcher._leadership, "hold", lambda: True)
    with pytest.raises(LeadershipLost, match="has begun epoch 2"):
        first._dispatcher.tick()


def test_a_second_controller_on_sqlite_is_refused(
    home: Any, start: Callable[[str], Replica], make_controller: Callable[..., Controller]
) -> None:
    """One sentence that says what several controllers need; the lock goes with the process that held it."""
    url = f"sqlite:///{home.folder / 'journal.db'}"
    only = start(url)
    other = Controller(home.settings(journal_url=url))
    with pytest.raises(JournalError, match=r"journal\.db is in use by another controller: .* PostgreSQL"):
        other.claim()
    only.end()
    other.claim()
    other.journal.close()


def test_a_loop_on_postgresql(home: Any, tools: Any, make_server: Any, cluster: Cluster) -> None:
    """The whole loop runs on PostgreSQL, with characters that it cannot store replaced."""
    trainer = home.trainer()
    server = make_server(journal_url=cluster.database())
    [outcome] = server.fire(tools.alert(starts_at=tools.now(), note="a\x00b"))
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "written")
    trainer.poll()
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "applied")
    [episode, *_] = server.ask("GET", "/api/v1/episodes").json()["episodes"]
    assert episode["labels"]["note"] == "a\ufffdb"
    assert server.client.get("/-/ready").status_code == 200
