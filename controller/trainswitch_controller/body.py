"""Reads request bodies of bounded size and turns them into validated documents."""

from __future__ import annotations

from typing import TypeVar

import anyio
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from trainswitch_controller.errors import BodyTooLarge, MalformedBody, SlowBody, Unprocessable
from trainswitch_controller.validation import first_fault

Document = TypeVar("Document", bound=BaseModel)

BODY_S = 30.0
"""How long a body may take from the request's head to its own end."""


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of `request`, never holding more than `limit` bytes and one chunk of it.

    Raises:
        BodyTooLarge: Content-Length, or what really arrives, is more than `limit` bytes.
        SlowBody: it has not arrived after `BODY_S` seconds.
        MalformedBody: the connection ended before the body did.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and (len(declared) > 18 or int(declared) > limit):
        raise _too_large(limit)
    body = bytearray()
    try:
        with anyio.fail_after(BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise SlowBody(
            f"only {len(body)} bytes of the body arrived within {BODY_S:.0f} s: send it again."
        ) from None
    except ClientDisconnect:
        raise MalformedBody(
            f"the connection ended after {len(body)} bytes of the body: send it again."
        ) from None
    return bytes(body)


def parse_document(body: bytes, model: type[Document], what: str) -> Document:
    """Return `body` as `model`; `what` names in errors what belongs there.

    Raises:
        MalformedBody: the body is not JSON.
        Unprocessable: it is JSON, but no such document.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            raise MalformedBody(f"the body is not JSON: {first_fault(error)}") from None
        raise Unprocessable(f"the body is not {what}: {first_fault(error)}") from None


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit} bytes: send fewer alerts at once (Alertmanager: max_alerts), or "
        "raise the setting max_body_bytes."
    )
