"""The controller's API, as the command line uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import requests
from requests.auth import AuthBase

from trainswitch.intervention.commands import check_run_name
from trainswitch_controller.cli.errors import (
    ControllerRefused,
    ControllerUnauthorised,
    ControllerUnreachable,
    UsageProblem,
)
from trainswitch_controller.cli.stack import load_stack
from trainswitch_controller.cli.tls import CA_VARIABLE, CERT_VARIABLE, tls_of_environment
from trainswitch_controller.cli.tokens import operator_token_path, read_operator_token

DEFAULT_CONTROLLER = "http://127.0.0.1:9095"
_CONNECT_TIMEOUT_S = 3.0
_READ_TIMEOUT_S = 10.0
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class _BearerToken(AuthBase):
    """Sends the token; being an auth object, it is not replaced by an entry of ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class ControllerClient:
    """One controller, asked as its operator.

    Every method raises ControllerUnreachable, ControllerUnauthorised or ControllerRefused.
    """

    def __init__(self, url: str, token_file: Path) -> None:
        self.url = url.rstrip("/")
        self._token_file = token_file
        self._tls = tls_of_environment()
        self._session = requests.Session()
        self._session.auth = _BearerToken(read_operator_token(token_file))
        # A proxy of the environment cannot reach this machine's own loopback.
        self._session.trust_env = urlsplit(url).hostname not in _LOOPBACK

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def __enter__(self) -> ControllerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def runs(self) -> list[dict[str, Any]]:
        """Return every run below the control folder, one short row each."""
        return self._list("runs", "/runs")

    def run(self, run: str) -> dict[str, Any]:
        """Return one run with its whole status and its unfinished commands."""
        return self._call("GET", f"/runs/{check_run_name(run)}")

    def issue(self, run: str, action: str, params: dict[str, Any], reason: str) -> dict[str, Any]:
        """Give a command and return it as the journal holds it."""
        body = {"action": action, "params": params, "reason": reason}
        return self._one("command", "POST", f"/runs/{check_run_name(run)}/commands", body)

    def command(self, identifier: str) -> dict[str, Any]:
        """Return one command as it is now."""
        return self._one("command", "GET", f"/commands/{quote(identifier, safe='')}")

    def approve(self, identifier: str) -> dict[str, Any]:
        """Approve a command that waits for it, and return it."""
        return self._one("command", "POST", f"/commands/{quote(identifier, safe='')}/approve")

    def reject(self, identifier: str, reason: str) -> dict[str, Any]:
        """Reject a command that waits for approval, and return it."""
        path = f"/commands/{quote(identifier, safe='')}/reject"
        return self._one("command", "POST", path, {"reason": reason})

    def explain(self, alertname: str, run: str | None) -> dict[str, Any]:
        """Return what the controller's policy would do about an alert now, and why."""
        query: dict[str, str | int | None] = {"run": run}
        found = self._call("GET", f"/policy/{quote(alertname, safe='')}", query=query).get("explanation")
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def commands(self, run: str | None, limit: int) -> list[dict[str, Any]]:
        """Return commands, newest first."""
        return self._list("commands", "/commands", run=run, limit=limit)

    def episodes(self, run: str | None, limit: int) -> list[dict[str, Any]]:
        """Return alert episodes with their decisions, newest first."""
        return self._list("episodes", "/episodes", run=run, limit=limit)

    def incidents(self, run: str | None, limit: int) -> list[dict[str, Any]]:
        """Return when the trouble behind alerts began and who is suspected, newest first."""
        return self._list("incidents", "/incidents", run=run, limit=limit)

    def _list(self, key: str, path: str, **query: str | int | None) -> list[dict[str, Any]]:
        rows = self._call("GET", path, query=query).get(key)
        if not isinstance(rows, list):
            raise self._stranger()
        return rows

    def _one(self, key: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        found = self._call(method, path, body=body).get(key)
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        query: dict[str, str | int | None] | None = None,
    ) -> dict[str, Any]:
        try:
            response = self._session.request(
                method,
                f"{self.url}/api/v1{path}",
                json=body,
                params=query,
                timeout=(_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S),
                allow_redirects=False,
                **self._tls,
            )
        except requests.RequestException as error:
            raise ControllerUnreachable(
                f"the controller at {self.url} is not reachable ({_cause(error)}): "
                "start it with 'trainswitch stack up', or name another with --controller."
            ) from error
        if response.status_code in {requests.codes.unauthorized, requests.codes.forbidden}:
            raise ControllerUnauthorised(
                f"the controller at {self.url} does not accept the token in {self._token_file}: "
                "name its own operator token with --token-file."
            )
        try:
            document = response.json()
        except requests.JSONDecodeError:
            document = None
        if not isinstance(document, dict):
            raise self._stranger()
        if response.status_code >= requests.codes.bad_request:
            raise ControllerRefused(str(document.get("error") or f"the controller answered {document}."))
        return document

    def _stranger(self) -> ControllerUnreachable:
        return ControllerUnreachable(
            f"what answers at {self.url} is not a trainswitch controller: name one with --controller."
        )


def connect(home: Path, controller: str | None, token_file: Path | None) -> ControllerClient:
    """Return a client for the controller that was named, that of the home's stack, or the default address.

    Raises:
        UsageProblem: `controller` is no HTTP address.
        ControllerUnauthorised: the token cannot be read.
        StackError: the record of the home's stack cannot be read.
    """
    if controller is None:
        stack = load_stack(home)
        controller = stack.controller if stack is not None else DEFAULT_CONTROLLER
    try:
        parts = urlsplit(controller)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise UsageProblem(f"--controller {controller!r} is no address: write it like {DEFAULT_CONTROLLER}.")
    return ControllerClient(controller, token_file or operator_token_path(home))


def _cause(error: requests.RequestException) -> str:
    """Name what went wrong without the internals of the HTTP library."""
    if isinstance(error, requests.exceptions.SSLError):
        return f"its TLS certificate is not trusted; name its authority in ${CA_VARIABLE}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        inner = inner.__cause__ or inner.__context__
    # In TLS 1.3 a client learns after the handshake that its certificate was missed, by a broken connection.
    if str(getattr(error.request, "url", "")).startswith("https:"):
        return f"connection broken; if it asks for certificates, name yours in ${CERT_VARIABLE}"
    return "connection failed"
