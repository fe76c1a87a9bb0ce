"""The HTTP face on a real uvicorn: what is accepted, what is refused, and with which sentence."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from trainswitch_controller.records import DeliveryRecord

Make = Callable[..., Any]


def _deliveries(session: Session) -> list[int]:
    """Return of each journaled delivery how many alerts were truncated."""
    return list(session.scalars(select(DeliveryRecord.truncated_alerts)))


def test_an_alert_travels_to_the_trainer_and_its_answer_back(
    home: Any, tools: Any, make_server: Make
) -> None:
    """A firing alert becomes one command in commands.json, and the trainer's answer reaches the journal."""
    trainer = home.trainer()
    server = make_server()
    [outcome] = server.fire(tools.alert(starts_at=time.time()))
    assert (outcome["alertname"], outcome["run"], outcome["outcome"]) == ("TrainNonFinite", "demo", "acted")
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "written")
    trainer.poll()
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "applied")
    command = server.command(outcome["command_id"])
    assert (command["run"], command["seq"], command["action"], command["source"]) == (
        "demo",
        1,
        "pause",
        "alert",
    )
    assert command["created_at"] <= command["written_at"] <= command["finished_at"]
    assert (command["step"], command["detail"]) == (100, "done")
    tools.wait_for(lambda: trainer.commands() == [])
    [episode] = server.ask("GET", "/api/v1/episodes?run=demo").json()["episodes"]
    assert (episode["state"], episode["severity"]) == ("firing", "critical")
    assert [one["command_id"] for one in episode["decisions"]] == [command["id"]]


def test_a_resend_is_a_duplicate(home: Any, tools: Any, make_server: Make) -> None:
    """The same episode delivered again causes nothing more."""
    trainer = home.trainer()
    server = make_server()
    alert = tools.alert(starts_at=time.time())
    outcomes = [server.fire(alert)[0]["outcome"] for _ in range(3)]
    assert outcomes == ["acted", "duplicate", "duplicate"]
    assert server.fire(alert, alert)[1]["outcome"] == "duplicate"
    assert len(server.ask("GET", "/api/v1/commands").json()["commands"]) == 1
    tools.wait_for(lambda: len(trainer.commands()) == 1)


def test_a_wrong_token_is_refused_before_the_body_is_read(make_server: Make) -> None:
    """A missing or wrong token gives 401 and a sentence, whatever the body is."""
    server = make_server()
    tokens = ["x", "operator-secret", "alertmanager-secre", "alertmanager-secret2", "é"]
    for token in tokens:
        header = f"Bearer {token}".encode("latin-1")
        response = server.client.post("/api/v1/alerts", content=b"{", headers={b"Authorization": header})
        assert response.status_code == 401
        assert "alertmanager token" in response.json()["error"]
        assert response.headers["www-authenticate"] == "Bearer"
    assert server.client.post("/api/v1/alerts", content=b"{").status_code == 401
    assert server.metric("webhooks_total", code="401") == len(tokens) + 1


def test_every_operator_address_needs_the_operator_token(home: Any, make_server: Make) -> None:
    """Without a token every operator address answers 401, and with Alertmanager's 403."""
    server = make_server(failures_per_minute=100)
    bearer = {"Authorization": f"Bearer {home.alertmanager_token}"}
    for method, path in (
        ("GET", "runs"),
        ("GET", "runs/demo"),
        ("POST", "runs/demo/commands"),
        ("GET", "commands"),
        ("GET", "commands/x"),
        ("POST", "commands/x/approve"),
        ("POST", "commands/x/reject"),
        ("GET", "policy/TrainNonFinite"),
        ("GET", "episodes"),
    ):
        assert server.client.request(method, f"/api/v1/{path}").status_code == 401
        response = server.client.request(method, f"/api/v1/{path}", headers=bearer)
        assert response.status_code == 403
        assert response.json()["error"].endswith("and the one that was sent is the alertmanager's.")


def test_nothing_describes_the_api_without_a_token(make_server: Make) -> None:
    """The documentation pages that FastAPI offers are off; errors are JSON sentences."""
    server = make_server()
    for path in ("/docs", "/redoc", "/openapi.json", "/"):
        response = server.client.get(path)
        assert response.status_code == 404
        assert list(response.json()) == ["error"]
    assert server.client.get("/api/v1/alerts").status_code == 405


def test_a_body_over_the_limit_is_refused(tools: Any, make_server: Make) -> None:
    """413 by Content-Length, and just so when no length is announced at all."""
    server = make_server(max_body_bytes=1000)
    large = json.dumps(tools.webhook(tools.alert(note="x" * 2000))).encode()
    assert server.post(large).status_code == 413
    response = server.client.post(
        "/api/v1/alerts",
        content=iter([large[:900], large[900:]]),
        headers={"Authorization": "Bearer alertmanager-secret"},
    )
    assert response.status_code == 413
    assert "1000 bytes" in response.json()["error"]
    assert server.metric("webhooks_total", code="413") == 2


def test_an_endless_body_is_cut_off(make_server: Make) -> None:
    """A chunked body is answered as soon as it passes the limit; its end is not waited for."""
    server = make_server(max_body_bytes=1000)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            b"POST /api/v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alertmanager-secret\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_body_shorter_than_announced_changes_nothing(make_server: Make) -> None:
    """A connection that ends within the body leaves no trace in the journal, and the server goes on."""
    server = make_server()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            b"POST /api/v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alertmanager-secret\r\n"
            b'Content-Length: 500\r\n\r\n{"version": "4"'
        )
    assert server.client.get("/-/healthy").status_code == 200
    assert server.ask("GET", "/api/v1/episodes").json() == {"episodes": []}


def test_what_is_not_json_is_400(make_server: Make) -> None:
    """A body that is not JSON can never be accepted and gets 400 and a sentence."""
    server = make_server()
    for body in (b"", b"{", b"\xff\xfe", b'{"version": "4", "alerts": [}', b'"\\ud800"', b"[" * 100_000):
        response = server.post(body)
        assert response.status_code == 400
        assert response.json()["error"].startswith("the body is not JSON")


def test_what_is_no_webhook_is_422(tools: Any, make_server: Make) -> None:
    """JSON that is no webhook of version 4 gets 422 and a sentence that names the place."""
    server = make_server()
    for change, named in (
        ({"version": "3"}, "version"),
        ({"alerts": "none"}, "alerts"),
        ({"alerts": [{}]}, "alerts.0.status"),
        ({"truncatedAlerts": 10**30}, "truncatedAlerts"),
        ({"truncatedAlerts": -1}, "truncatedAlerts"),
    ):
        response = server.post(tools.webhook(**change))
        assert response.status_code == 422
        assert named in response.json()["error"]


def test_a_delivery_without_any_valid_run_is_422_and_journaled(
    home: Any, tools: Any, make_server: Make
) -> None:
    """A run name that cannot be a folder never touches the file system; the delivery is journaled."""
    server = make_server()
    names = [None, "", "../other", "a/b", ".hidden", "x" * 129]
    for run in names:
        response = server.post(tools.webhook(tools.alert(run=run)))
        assert response.status_code == 422
        [outcome] = response.json()["outcomes"]
        assert outcome["outcome"] == "invalid_run"
        assert response.json()["error"] == outcome["reason"]
    assert list(home.control.iterdir()) == []
    assert server.controller.journal.read(_deliveries) == [0] * len(names)
    assert server.metric("alerts_total", alertname="TrainNonFinite", outcome="invalid_run") == len(names)


def test_a_bad_alert_does_not_spoil_a_good_one(home: Any, tools: Any, make_server: Make) -> None:
    """Each alert of a delivery is decided for itself; the group's status means nothing."""
    home.trainer()
    server = make_server()
    body = tools.webhook(
        tools.alert(run="a/b"),
        tools.alert(starts_at=time.time()),
        tools.alert("Unheard", starts_at=time.time()),
        status="resolved",
    )
    response = server.post(body)
    assert response.status_code == 200
    assert [one["outcome"] for one in response.json()["outcomes"]] == ["invalid_run", "acted", "no_policy"]
    assert server.metric("alerts_total", alertname="other", outcome="no_policy") == 1


def test_truncated_alerts_are_journaled_and_counted(home: Any, tools: Any, make_server: Make) -> None:
    """What Alertmanager left out is not acted on, but it is not silent either."""
    server = make_server()
    assert server.post(tools.webhook(tools.alert(), truncatedAlerts=3)).status_code == 200
    assert server.metric("alerts_total", alertname="other", outcome="truncated") == 3
    assert server.controller.journal.read(_deliveries) == [3]


def test_the_watchdog_only_sets_a_timestamp(tools: Any, make_server: Make) -> None:
    """The always-firing alert needs no run and no policy, and causes no episode."""
    server = make_server()
    before = time.time()
    [outcome] = server.fire(tools.alert("Watchdog", run=None))
    assert outcome["outcome"] == "watchdog"
    assert before <= server.metric("watchdog_timestamp_seconds") <= time.time()
    assert server.ask("GET", "/api/v1/episodes").json() == {"episodes": []}


def test_a_journal_that_cannot_commit_is_503_and_a_retry_succeeds(
    home: Any, tools: Any, make_server: Make
) -> None:
    """While another process holds the write lock nothing is stored; then the same delivery acts once."""
    trainer = home.trainer()
    server = make_server()
    body = tools.webhook(tools.alert(starts_at=time.time()))
    other = sqlite3.connect(home.folder / "journal.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    response = server.post(body)
    assert response.status_code == 503
    assert "database is locked" in response.json()["error"]
    assert server.client.get("/-/ready").status_code == 503
    other.execute("ROLLBACK")
    assert other.execute("SELECT count(*) FROM deliveries").fetchone() == (0,)
    other.close()
    response = server.post(body)
    assert [one["outcome"] for one in response.json()["outcomes"]] == ["acted"]
    tools.wait_for(lambda: len(trainer.commands()) == 1)
    tools.wait_for(lambda: server.client.get("/-/ready").status_code == 200)


def test_a_journal_on_a_full_disk_stores_nothing_by_halves(home: Any, tools: Any, make_server: Make) -> None:
    """SQLite's own 'database or disk is full' gives 503, leaves no row behind, and clears with the disk."""
    server = make_server()
    engine = server.controller.journal.engine

    def fill(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")

    def free(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1000000")

    event.listen(engine, "checkout", fill)
    big = tools.alert(starts_at=time.time(), note="x" * 200_000)
    response = server.post(tools.webhook(big))
    assert response.status_code == 503
    assert "full" in response.json()["error"]
    event.remove(engine, "checkout", fill)
    event.listen(engine, "checkout", free)
    assert server.ask("GET", "/api/v1/episodes").json() == {"episodes": []}
    assert server.fire(big)[0]["outcome"] == "acted"


def test_an_operators_command_is_journaled_and_written(home: Any, tools: Any, make_server: Make) -> None:
    """An operator's command passes cooldowns by, gets its defaults spelled out, and is answered with 202."""
    trainer = home.trainer()
    server = make_server()
    response = server.ask("POST", "/api/v1/runs/demo/commands", json={"action": "reduce_lr", "reason": "try"})
    assert response.status_code == 202
    command = response.json()["command"]
    assert (command["source"], command["state"], command["params"]) == (
        "operator",
        "pending",
        {"factor": 0.5},
    )
    assert (command["reason"], command["alertname"], command["episode_id"]) == ("try", None, None)
    tools.wait_for(lambda: [one["id"] for one in trainer.commands()] == [command["id"]])
    detail = server.ask("GET", "/api/v1/runs/demo").json()
    assert [one["id"] for one in detail["commands"]] == [command["id"]]
    assert (detail["run"], detail["status"]["state"], detail["status_error"]) == ("demo", "running", None)


def test_a_command_that_cannot_be_is_refused(home: Any, make_server: Make) -> None:
    """Unknown runs, actions, parameters and keys get a sentence that names them; nothing is journaled."""
    home.trainer()
    server = make_server()
    for run, body, status, words in (
        ("demo", {"action": "pauze"}, 422, "did you mean 'pause'?"),
        ("demo", {"action": "reduce_lr", "params": {"factor": 2}}, 422, "'factor'"),
        ("demo", {"action": "pause", "params": {"x": 1}}, 422, "'x'"),
        ("demo", {"acton": "pause"}, 422, "did you mean 'action'?"),
        ("demo", {}, 422, "'action' is missing"),
        ("demo", [], 422, "the body is not a command"),
        ("other", {"action": "pause"}, 404, "'other'"),
        ("..demo", {"action": "pause"}, 422, "run name '..demo' is not allowed"),
        ("a%2Fb", {"action": "pause"}, 404, "Not Found"),
    ):
        response = server.ask("POST", f"/api/v1/runs/{run}/commands", json=body)
        assert response.status_code == status
        assert words in response.json()["error"]
    assert server.ask("GET", "/api/v1/commands").json() == {"commands": []}


def test_a_custom_action_needs_the_policy_or_the_run(home: Any, make_server: Make) -> None:
    """What the policy declares, or the run's trainer lists, can be commanded; no other run's actions."""
    home.write_policy("version: 1\ncustom_actions: [dump_batch]\nalerts: {}")
    home.trainer("demo").write(actions=("pause", "drop_source"))
    home.trainer("other")
    server = make_server()
    for run, action, status in (
        ("demo", "drop_source", 202),
        ("demo", "dump_batch", 202),
        ("other", "dump_batch", 202),
        ("other", "drop_source", 422),
    ):
        body = {"action": action, "params": {"share": 0.5, "of": None}}
        response = server.ask("POST", f"/api/v1/runs/{run}/commands", json=body)
        assert response.status_code == status
        if status == 202:
            assert response.json()["command"]["params"] == {"share": 0.5, "of": None}
    error = response.json()["error"]
    assert "action 'drop_source' does not exist: use one of pause," in error
    assert "none is in the policy's custom_actions." in error


def test_runs_are_listed_with_what_their_trainers_say(home: Any, make_server: Make) -> None:
    """A run with a damaged status file is listed with the reason, not left out and not an error."""
    home.trainer("good")
    (home.control / "new").mkdir()
    (home.control / "torn").mkdir()
    (home.control / "torn" / "status.json").write_text('{"schema":')
    (home.control / ".lost+found").mkdir()
    runs = make_server().ask("GET", "/api/v1/runs").json()["runs"]
    assert [(one["run"], one["state"], one["step"]) for one in runs] == [
        ("good", "running", 100),
        ("new", None, None),
        ("torn", None, None),
    ]
    assert [one["error"] is None for one in runs] == [True, True, False]


def test_what_does_not_exist_is_404(make_server: Make) -> None:
    """Unknown runs and commands are named in the answer."""
    server = make_server()
    for path in ("/api/v1/runs/none", "/api/v1/commands/none"):
        response = server.ask("GET", path)
        assert response.status_code == 404
        assert "'none'" in response.json()["error"]
    assert server.ask("POST", "/api/v1/commands/none/approve").status_code == 404
    assert server.ask("POST", "/api/v1/commands/none/reject").status_code == 404
    assert server.ask("GET", "/api/v1/commands?limit=0").status_code == 422


def test_ready_says_what_is_missing(home: Any, make_server: Make) -> None:
    """Ready turns 503 with a sentence when the control folder goes away, and healthy does not."""
    server = make_server()
    assert server.client.get("/-/ready").status_code == 200
    home.control.rename(home.folder / "moved")
    response = server.client.get("/-/ready")
    assert response.status_code == 503
    assert str(home.control) in response.json()["error"]
    assert server.client.get("/-/healthy").status_code == 200


def test_a_controller_without_control_folder_starts_and_waits_for_it(
    home: Any, tools: Any, make_server: Make
) -> None:
    """Until journal and folder are reconciled a delivery gets 503, which Alertmanager repeats."""
    home.control.rmdir()
    server = make_server()
    assert server.post(tools.webhook(tools.alert(starts_at=time.time()))).status_code == 503
    home.control.mkdir()
    home.trainer()
    tools.wait_for(lambda: server.client.get("/-/ready").status_code == 200)
    assert server.fire(tools.alert(starts_at=time.time()))[0]["outcome"] == "acted"


def test_a_token_is_read_again_when_its_file_changes(home: Any, make_server: Make) -> None:
    """A new token takes the place of the old one at once; a file that is gone closes the door with 503."""
    server = make_server()
    path = home.folder / "operator.token"
    path.write_text("another-secret-1")
    assert server.ask("GET", "/api/v1/runs").status_code == 401
    home.operator_token = "another-secret-1"
    assert server.ask("GET", "/api/v1/runs").status_code == 200
    path.unlink()
    response = server.ask("GET", "/api/v1/runs")
    assert response.status_code == 503
    assert str(path) in response.json()["error"]
    assert server.client.get("/-/ready").status_code == 503


def test_metrics_exist_before_anything_happens(make_server: Make) -> None:
    """Every label set that can be known is exposed with 0 from the start, and without creation times."""
    text = make_server().client.get("/metrics").text
    for line in (
        'trainswitch_controller_webhooks_total{code="503"} 0.0',
        'trainswitch_controller_alerts_total{alertname="TrainNonFinite",outcome="acted"} 0.0',
        'trainswitch_controller_alerts_total{alertname="other",outcome="truncated"} 0.0',
        'trainswitch_controller_commands_total{action="rollback",state="expired"} 0.0',
        'trainswitch_controller_write_failures_total{reason="no_space"} 0.0',
        'trainswitch_controller_control_file_errors_total{file="commands",reason="torn"} 0.0',
        "trainswitch_controller_watchdog_timestamp_seconds 0.0",
        "trainswitch_controller_alert_age_seconds_count 0.0",
    ):
        assert line in text.splitlines()
    assert "trainswitch_controller_build_info{version=" in text
    assert "_created" not in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
texts = st.text(max_size=30)
odd_alerts = st.fixed_dictionaries(
    {
        "status": st.sampled_from(["firing", "resolved"]) | texts,
        "labels": st.dictionaries(st.sampled_from(["alertname", "run", "severity", "x"]), texts, max_size=4)
        | st.fixed_dictionaries(
            {"alertname": st.sampled_from(["TrainNonFinite", "Watchdog"]), "run": st.just("demo") | texts}
        ),
        "startsAt": st.datetimes().map(lambda at: at.isoformat() + "Z") | texts | st.integers(),
        "fingerprint": texts,
    },
    optional={"annotations": st.dictionaries(texts, texts, max_size=2) | json_values, "extra": json_values},
)
odd_webhooks = st.fixed_dictionaries(
    {"version": st.just("4"), "alerts": st.lists(odd_alerts, max_size=3)},
    optional={
        "truncatedAlerts": st.integers() | json_values,
        "groupKey": texts | json_values,
        "receiver": texts,
    },
)


def test_no_payload_makes_the_controller_fail(home: Any, make_server: Make) -> None:
    """Whatever is posted, the answer is 200 or a 4xx: a 5xx would be repeated for ever."""
    home.trainer()
    server = make_server()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        (odd_webhooks | json_values).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
        | st.binary(max_size=200)
    )
    def check(body: bytes) -> None:
        response = server.post(body)
        assert response.status_code in {200, 400, 422}, response.text

    check()
