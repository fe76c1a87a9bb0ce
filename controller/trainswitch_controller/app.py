"""The controller's HTTP face: its routes on FastAPI."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Request, Response
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
from trainswitch_controller.errors import (
    ControllerError,
    Forbidden,
    NotFound,
    TooManyRequests,
    Unauthorized,
)
from trainswitch_controller.intake import Receipt
from trainswitch_controller.onset.routes import add_incidents
from trainswitch_controller.parameters import AlertName, CommandId, Limit, RunPath, RunQuery
from trainswitch_controller.runbooks import read_runbook
from trainswitch_controller.service import Controller, Order, Rejection
from trainswitch_controller.settings import Settings

log = logging.getLogger(__name__)

_RELAYED_AT_ONCE = 8
_DELIVERED_AT_ONCE = 8
_READING = frozenset({"GET", "HEAD"})


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
    # Threads of their own: neither slow gateways nor people who look at much must hold up alerts that act.
    gateways = CapacityLimiter(_RELAYED_AT_ONCE)
    deliveries = CapacityLimiter(_DELIVERED_AT_ONCE)

    async def authenticated(request: Request) -> Webhook:
        controller.access.alertmanager(_address(request), request.headers.get("authorization"))
        body = await read_body(request, controller.settings.max_body_bytes)
        return parse_document(body, Webhook, "an Alertmanager webhook of version 4")

    async def receive(request: Request) -> JSONResponse:
        webhook = await authenticated(request)
        receipt = await to_thread.run_sync(controller.deliver, webhook, limiter=deliveries)
        content = _receipt_view(receipt)
        if not receipt.rejected:
            return JSONResponse(content)
        return JSONResponse({"error": receipt.judged[0].reason, **content}, status_code=422)

    @router.post("/api/v1/alerts")
    async def alerts(request: Request) -> JSONResponse:
        try:
            response = await receive(request)
        except ControllerError as error:
            if not isinstance(error, (Unauthorized, Forbidden, TooManyRequests)):  # logged there, in bounds
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
    async def known(request: Request) -> None:
        admit = controller.access.viewer if request.method in _READING else controller.access.operator
        admit(_address(request), request.headers.get("authorization"))

    router = APIRouter(prefix="/api/v1", dependencies=[Depends(known)])
    control_dir = controller.control_dir
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
    def one_run(run: RunPath) -> dict[str, Any]:
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
    async def order(run: RunPath, request: Request) -> dict[str, Any]:
        body = await read_body(request, controller.settings.max_body_bytes)
        wanted = parse_document(body, Order, "a command")
        return {"command": views.command_view(await run_in_threadpool(controller.order, run, wanted))}

    @router.get("/commands")
    def commands(run: RunQuery = None, limit: Limit = 100) -> dict[str, Any]:
        return {"commands": journal.read(lambda session: views.commands(session, run, limit))}

    @router.get("/commands/{command_id}")
    def command(command_id: CommandId) -> dict[str, Any]:
        return {"command": journal.read(lambda session: views.one_command(session, command_id))}

    @router.post("/commands/{command_id}/approve")
    def approve(command_id: CommandId) -> dict[str, Any]:
        return {"command": views.command_view(controller.approve(command_id))}

    @router.post("/commands/{command_id}/reject")
    async def reject(command_id: CommandId, request: Request) -> dict[str, Any]:
        body = await read_body(request, controller.settings.max_body_bytes)
        rejection = parse_document(body or b"{}", Rejection, "a rejection")
        command = await run_in_threadpool(controller.reject, command_id, rejection)
        return {"command": views.command_view(command)}

    @router.get("/policy/{alertname}")
    def explain(alertname: AlertName, run: RunQuery = None) -> dict[str, Any]:
        return {"explanation": controller.explain(alertname, run).document()}

    @router.get("/episodes")
    def episodes(run: RunQuery = None, limit: Limit = 100) -> dict[str, Any]:
        return {"episodes": journal.read(lambda session: views.episodes(session, run, limit))}

    add_incidents(router, journal)

    return router


def _address(request: Request) -> str:
    """Return where `request` comes from; headers that say so are not believed."""
    return request.client.host if request.client else ""


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
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthorized) else {}
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_after)
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
