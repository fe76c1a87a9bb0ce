"""The API against what its own description allows, and what it does not, on a real server and journal."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from trainswitch_controller.cli import main
from trainswitch_controller.openapi import describe

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]

fuzzing = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,  # CI must not fail by luck; a longer search is one environment variable away
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def server(home: Any, tools: Any, make_server: Callable[..., Any]) -> Any:
    """A controller with a run, an open command, an episode, and limits that fuzzing does not reach."""
    home.trainer()
    path = home.folder / "viewer.token"
    path.write_text("viewer-0123456789")
    path.chmod(0o600)
    made = make_server(viewer_token_file=path, failures_per_minute=10_000, orders_per_minute=100_000)
    made.fire(tools.alert(starts_at=time.time()))
    return made


def test_every_address_is_described(server: Any) -> None:
    """Each operation names its answers, its errors and who may use it; each body is described."""
    document = describe(server.app)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["responses"], path
            if path.startswith("/api/v1"):
                assert operation["security"], path
                assert {"401", "403", "429", "503"} <= set(operation["responses"]), path
                answer = next(code for code in operation["responses"] if code.startswith("2"))
                schema = operation["responses"][answer]["content"]["application/json"]["schema"]
                assert schema != {"$ref": "#/components/schemas/Anything"}, path
            if method == "post" and not path.endswith("/approve"):
                assert operation["requestBody"]["content"]["application/json"]["schema"], path
    assert "/api/v1/alerts" in document["paths"]


def test_the_command_line_prints_it(server: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """``trainswitch openapi`` describes the same API, without a controller."""
    assert main(["openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(server.app)


def fuzz(
    operation: Any,
    mode: GenerationMode,
    server: Any,
    token: str,
    known: dict[str, str],
    session: requests.Session,
) -> list[int]:
    """Send what `operation` allows, or does not; check each answer as described; return the codes."""
    codes: list[int] = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @fuzzing
    def send(case: Any) -> None:
        # A random token would end everything else at once; that a token is needed has tests of its own.
        headers = {
            name: text for name, text in (case.headers or {}).items() if name.lower() != "authorization"
        }
        case.headers = {**headers, "Authorization": f"Bearer {token}"}
        if mode is GenerationMode.POSITIVE:  # most names that are allowed do not exist
            case.path_parameters = {
                name: known.get(name, value) for name, value in case.path_parameters.items()
            }
            if isinstance(case.body, dict) and len(case.body.get("action", "x")) % 2 == 0:
                case.body = {**case.body, "action": "pause", "params": {}}
        response = case.call(base_url=f"http://127.0.0.1:{server.port}", session=session)
        codes.append(response.status_code)
        case.validate_response(response, checks=CHECKS)

    with contextlib.suppress(Unsatisfiable):  # nothing can be wrong where nothing can be said
        send()
    return codes


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_as_described(mode: GenerationMode, server: Any, home: Any) -> None:
    """Whatever is sent, the answer has a described code and form; nothing is a failure of the controller."""
    schema = schemathesis.openapi.from_dict(describe(server.app))
    [command] = server.ask("GET", "/api/v1/commands").json()["commands"]
    known = {"run": "demo", "command_id": command["id"], "alertname": "TrainNonFinite"}
    codes: set[int] = set()
    with requests.Session() as session:
        for found in schema.get_all_operations():
            assert isinstance(found, Ok), found
            operation = found.ok()
            delivers = operation.path.startswith(("/api/v1/alerts", "/api/v1/relays"))
            token = home.alertmanager_token if delivers else home.operator_token
            codes.update(fuzz(operation, mode, server, token, known, session))
    expected = {200, 202, 404, 409, 422} if mode is GenerationMode.POSITIVE else {422}
    assert expected <= codes
    assert not codes & {401, 403, 429, 500, 503}
