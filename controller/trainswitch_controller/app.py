"""The controller's HTTP face: routes on FastAPI, and `serve`, which runs them on uvicorn."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from trainswitch.errors import RunNameError, TrainswitchError
from trainswitch.intervention.commands import check_run_name
from trainswitch_controller import runs, views
from trainswitch_controller.alerts import Webhook
from trainswitch_controller.body import parse_document, read_body
from trainswitch_controller.errors import ControllerError, NotFound, ServeError, Unauthorized
from trainswitch_controller.intake import Receipt
from trainswitch_controller.runbooks import read_runbook
from trainswitch_controller.service import Controller, Order, Rejection
from trainswitch_controller.settings import Settings

log = logging.getLogger(__name__)

_RELAYED_AT_ONCE = 8

Limit = Annotated[int, Query(ge=1, le=1000)]


def create_app(settings: Settings) -> FastAPI:
    """Return the application; its lifespan starts and stops the dispatcher.

    Raises:
        ControllerError: policy, tokens or journal_url are not usable.
    """
    controller = Controller(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(controller.start)
        try:
            yield
        finally:
            await run_in_threadpool(controller.stop)

    # No documentation pages: they would describe the API to whoever holds no token.
    app = FastAPI(
        title="trainswitch controller", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.controller = controller
    app.add_exception_handler(TrainswitchError, _refusal)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_query)
    app.add_exception_handler(Exception, _internal_error)
    app.include_router(_open_routes(controller))
    app.include_router(_webhook_routes(controller))
    app.include_router(_operator_routes(controller))
    return app


def serve(settings: Settings) -> int:
    """Run the controller until SIGTERM or SIGINT and return the process's exit code.

    Settings, policy, tokens, TLS files or a port that cannot be used give one sentence on stderr and code 1.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        app = create_app(settings)
        listening = _listen(settings)
        with listening, _quiet_signals():
            log.info(
                "listening at %s://%s:%d",
                "https" if settings.tls_cert else "http",
                *listening.getsockname()[:2],
            )
            server = uvicorn.Server(_uvicorn_config(app, settings))
            server.run(sockets=[listening])
    except TrainswitchError as error:
        print(f"trainswitch controller: {error}", file=sys.stderr)
        return 1
    return 0 if server.started else 1


def _open_routes(controller: Controller) -> APIRouter:
    """Routes without a token: they tell nothing about a run but numbers."""
    router = APIRouter()

    @router.get("/-/healthy")
    async def healthy() -> dict[str, str]:
        return {"status": "healthy"}

    @router.get("/-/ready")
    def ready() -> JSONResponse:
        problems = controller.problems()
        if problems:
            return JSONResponse({"error": " ".join(problems)}, status_code=503)
        return JSONResponse({"status": "ready"})

    @router.get("/metrics")
    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(controller.metrics.registry), media_type=content_type)

    @router.get("/runbooks/{alert}")
    def runbook(alert: str) -> Response:
        return Response(
            read_runbook(controller.settings.runbooks_dir, alert), media_type="text/plain; charset=utf-8"
        )

    return router


def _webhook_routes(controller: Controller) -> APIRouter:
    router = APIRouter()
    # Threads of their own: slow gateways must not hold up alerts that act.
    gateways = CapacityLimiter(_RELAYED_AT_ONCE)

    async def authenticated(request: Request) -> Webhook:
        controller.tokens["alertmanager"].check(request.headers.get("authorization"))
        body = await read_body(request, controller.settings.max_body_bytes)
        return parse_document(body, Webhook, "an Alertmanager webhook of version 4")

    async def receive(request: Request) -> JSONResponse:
        webhook = await authenticated(request)
        receipt = await run_in_threadpool(controller.deliver, webhook)
        content = _receipt_view(receipt)
        if not receipt.rejected:
            return JSONResponse(content)
        return JSONResponse({"error": receipt.judged[0].reason, **content}, status_code=422)

    @router.post("/api/v1/alerts")
    async def alerts(request: Request) -> JSONResponse:
        try:
            response = await receive(request)
        except ControllerError as error:
            log.warning("webhook refused with %d: %s", error.status, error)
            response = await _refusal(request, error)
        except Exception:
            controller.metrics.webhook(500)
            raise
        controller.metrics.webhook(response.status_code)
        return response

    @router.post("/api/v1/relays/{name}")
    async def relay(name: str, request: Request) -> dict[str, str]:
        webhook = await authenticated(request)
        try:
            await to_thread.run_sync(controller.relay, name, webhook, limiter=gateways)
        except ControllerError as error:
            log.warning("not relayed: %s", error)
            raise
        return {"relay": name, "result": "sent"}

    return router


def _operator_routes(controller: Controller) -> APIRouter:
    async def operator(request: Request) -> None:
        controller.tokens["operator"].check(request.headers.get("authorization"))

    router = APIRouter(prefix="/api/v1", dependencies=[Depends(operator)])
    control_dir = controller.settings.control_dir
    journal = controller.journal

    @router.get("/runs")
    def all_runs() -> dict[str, Any]:
        waiting = journal.read(views.awaiting_approval)
        return {
            "runs": [
                {**view, "awaiting_approval": waiting.get(view["run"], 0)}
                for view in views.all_runs(control_dir)
            ]
        }

    @router.get("/runs/{run}")
    def one_run(run: str) -> dict[str, Any]:
        check_run_name(run)
        unfinished = journal.read(lambda session: views.unfinished_commands(session, run))
        if not unfinished and not runs.has_folder(control_dir, run):
            raise NotFound(f"run {run!r} has no folder in {control_dir}: is its trainer started?")
        status, error = views.status_of(control_dir, run)
        since = time.time() - views.UNAPPROVED_SHOWN_S
        return {
            "run": run,
            "status": status,
            "status_error": error,
            "commands": unfinished,
            "unapproved": journal.read(lambda session: views.unapproved_commands(session, run, since)),
        }

    @router.post("/runs/{run}/commands", status_code=202)
    async def order(run: str, request: Request) -> dict[str, Any]:
        body = await read_body(request, controller.settings.max_body_bytes)
        wanted = parse_document(body, Order, "a command")
        return {"command": views.command_view(await run_in_threadpool(controller.order, run, wanted))}

    @router.get("/commands")
    def commands(run: str | None = None, limit: Limit = 100) -> dict[str, Any]:
        return {"commands": journal.read(lambda session: views.commands(session, run, limit))}

    @router.get("/commands/{command_id}")
    def command(command_id: str) -> dict[str, Any]:
        return {"command": journal.read(lambda session: views.one_command(session, command_id))}

    @router.post("/commands/{command_id}/approve")
    def approve(command_id: str) -> dict[str, Any]:
        return {"command": views.command_view(controller.approve(command_id))}

    @router.post("/commands/{command_id}/reject")
    async def reject(command_id: str, request: Request) -> dict[str, Any]:
        body = await read_body(request, controller.settings.max_body_bytes)
        rejection = parse_document(body or b"{}", Rejection, "a rejection")
        command = await run_in_threadpool(controller.reject, command_id, rejection)
        return {"command": views.command_view(command)}

    @router.get("/policy/{alertname}")
    def explain(alertname: str, run: str | None = None) -> dict[str, Any]:
        return {"explanation": controller.explain(alertname, run).document()}

    @router.get("/episodes")
    def episodes(run: str | None = None, limit: Limit = 100) -> dict[str, Any]:
        return {"episodes": journal.read(lambda session: views.episodes(session, run, limit))}

    return router


def _receipt_view(receipt: Receipt) -> dict[str, Any]:
    return {
        "delivery": receipt.delivery,
        "outcomes": [
            {
                "alertname": one.alertname,
                "run": one.run,
                "outcome": one.outcome,
                "reason": one.reason,
                "command_id": one.command_id,
            }
            for one in receipt.judged
        ],
    }


async def _refusal(_request: Request, error: Exception) -> JSONResponse:
    status = error.status if isinstance(error, ControllerError) else 500
    if isinstance(error, RunNameError):
        status = 422
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else None
    return JSONResponse({"error": str(error)}, status_code=status, headers=headers)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path[:200]}: {error.detail}."
    return JSONResponse({"error": sentence}, status_code=error.status_code, headers=error.headers)


async def _invalid_query(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    return JSONResponse({"error": f"{fault['loc'][-1]}: {fault['msg']}."}, status_code=422)


async def _internal_error(_request: Request, _error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the controller failed: this is a bug, see its log."}, status_code=500)


def _listen(settings: Settings) -> socket.socket:
    """Return the listening socket, so that a port in use is known before anything else is started."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        # create_server appends the address, which the sentence names already.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise ServeError(
            f"cannot listen at {settings.host}:{settings.port}: {why}; stop what uses "
            "that address, or give another host or port."
        ) from error


def _uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=5,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ServeError(
            f"TLS with {settings.tls_cert} and {settings.tls_key} cannot work: {error.strerror or error}; "
            "give a PEM certificate chain and its private key."
        ) from error
    return config


@contextlib.contextmanager
def _quiet_signals() -> Iterator[None]:
    """Let uvicorn, which raises a signal once more after its orderly end, not end the process by it."""
    kept = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
