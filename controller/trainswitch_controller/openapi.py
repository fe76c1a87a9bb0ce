"""The API as an OpenAPI document: FastAPI's description of the routes, with bodies, answers and roles.

The routes read their bodies themselves, bounded and after the token, so FastAPI cannot know what belongs
there. The controller does not serve the document; ``trainswitch openapi`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from trainswitch.version import version
from trainswitch_controller import answers
from trainswitch_controller.alerts import Webhook
from trainswitch_controller.service import Order, Rejection

Json = dict[str, Any]

_API = "/api/v1/"
_REFERENCE = "#/components/schemas/{model}"

_SENTENCES = {
    400: "The body is not JSON.",
    401: "The token is missing or wrong.",
    403: "The token is another role's.",
    404: "There is no such thing.",
    409: "The state of the command or of the run does not allow it.",
    413: "The body is too large.",
    422: "A parameter, or what the body says, is not valid.",
    429: "Too many wrong tokens, or orders, came from this address.",
    502: "The gateway of the relay cannot be reached, or asks for a later attempt.",
    503: "The controller cannot do it at present; try again.",
}

_TOKEN = (401, 403, 429, 503)
_BODY = (400, 413, 422)

_ANSWERS: dict[str, tuple[type[BaseModel], int]] = {
    "POST alerts": (answers.Receipt, 200),
    "POST relays/{name}": (answers.Relayed, 200),
    "GET runs": (answers.Runs, 200),
    "GET runs/{run}": (answers.Run, 200),
    "POST runs/{run}/commands": (answers.OneCommand, 202),
    "GET commands": (answers.Commands, 200),
    "GET commands/{command_id}": (answers.OneCommand, 200),
    "POST commands/{command_id}/approve": (answers.OneCommand, 200),
    "POST commands/{command_id}/reject": (answers.OneCommand, 200),
    "GET policy/{alertname}": (answers.Explained, 200),
    "GET episodes": (answers.Episodes, 200),
    "GET incidents": (answers.Incidents, 200),
}
"""Method and path below ``/api/v1`` → the answer and its code."""

_BODIES: dict[str, tuple[type[BaseModel], bool]] = {
    "POST alerts": (Webhook, True),
    "POST relays/{name}": (Webhook, True),
    "POST runs/{run}/commands": (Order, True),
    "POST commands/{command_id}/reject": (Rejection, False),
}
"""The same → the body, and whether there must be one."""

_MORE_ERRORS: dict[str, tuple[int, ...]] = {
    "POST alerts": (),
    "POST relays/{name}": (404, 502),
    "GET runs/{run}": (404, 422),
    "POST runs/{run}/commands": (404, 409),
    "GET commands/{command_id}": (404, 422),
    "POST commands/{command_id}/approve": (404, 409, 422),
    "POST commands/{command_id}/reject": (404, 409),
}
"""The same → errors beyond those of every address with a token, or a body; 422 where nothing is said."""


def describe(app: FastAPI) -> Json:
    """Return the OpenAPI document of `app`, which `create_app` has made."""
    document = get_openapi(title=app.title, version=version(), routes=app.routes)
    schemas: Json = {}
    document["components"] = {"schemas": schemas}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path.startswith(_API):
                _describe_api(f"{method.upper()} {path.removeprefix(_API)}", operation, schemas)
            else:
                _describe_open(path, operation, schemas)
    document["components"]["securitySchemes"] = {
        role: {"type": "http", "scheme": "bearer"} for role in ("alertmanager", "operator", "viewer")
    }
    return document


def _describe_api(route: str, operation: Json, schemas: Json) -> None:
    model, code = _ANSWERS.get(route, (answers.Anything, 200))
    body = _BODIES.get(route)
    more = _MORE_ERRORS.get(route, (422,))
    errors = {*_TOKEN, *more, *(_BODY if body else ())}
    operation["responses"] = {
        str(code): _json("Done.", _schema(model, schemas, "serialization")),
        **_errors(errors, schemas),
    }
    if route == "POST alerts":
        refused = {"anyOf": [_schema(answers.Fault, schemas), _schema(answers.RefusedReceipt, schemas)]}
        operation["responses"]["422"] = _json(_SENTENCES[422], refused)
    if body is not None:
        operation["requestBody"] = {
            "required": body[1],
            "content": {"application/json": {"schema": _schema(body[0], schemas)}},
        }
    if route in ("POST alerts", "POST relays/{name}"):
        roles = ["alertmanager"]
    else:
        roles = ["viewer", "operator"] if route.startswith("GET ") else ["operator"]
    operation["security"] = [{role: []} for role in roles]


def _describe_open(path: str, operation: Json, schemas: Json) -> None:
    text = {"description": "Done.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    if path == "/metrics":
        openmetrics = {"schema": {"type": "string"}}
        text["content"] = {**text["content"], "application/openmetrics-text": openmetrics}  # type: ignore[dict-item]
        operation["responses"] = {"200": text}
    elif path.startswith("/runbooks/"):
        operation["responses"] = {"200": text, **_errors((404, 422), schemas)}
    else:
        done = _json("Done.", _schema(answers.Health, schemas))
        operation["responses"] = {"200": done, **_errors((503,) if path == "/-/ready" else (), schemas)}


def _errors(codes: Iterable[int], schemas: Json) -> Json:
    return {str(code): _json(_SENTENCES[code], _schema(answers.Fault, schemas)) for code in sorted(codes)}


def _json(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _schema(model: type[BaseModel], schemas: Json, mode: Any = "validation") -> Json:
    """Return a reference to `model`, which is added to `schemas` with those it consists of."""
    found = model.model_json_schema(ref_template=_REFERENCE, mode=mode)
    schemas.update(found.pop("$defs", {}))
    schemas[model.__name__] = found
    return {"$ref": _REFERENCE.format(model=model.__name__)}
