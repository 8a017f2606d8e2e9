"""The ASGI app: the page, lists of bundled models and hardware, and configurations computed on request."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llmir.api.load import devices
from llmir.backends.export.page import bundle
from llmir.base.names import plain
from llmir.base.version import __version__
from llmir.frontends.models import presets
from llmir.hw import library

from .guard import AllowedHosts, App, Guard, RejectionError
from .request import BUDGET, read
from .worker import Worker

MODEL = "llama3.1-8b"  # the model at the start of the page
_START = {"batch": 1, "prompt": 2048, "generate": 128}
_WAITING = 16  # requests that may wait for their turn
_PATIENCE = 10.0  # seconds to wait for a body


def app(host: str = "127.0.0.1", token: str | None = None, worker: Worker | None = None) -> App:
    """Build the ASGI app of the server.

    Args:
        host: The host name that requests must use.
        token: The secret of allowed clients; None allows all.
        worker: The process that computes configurations, one at a time.
    """
    make = Worker() if worker is None else worker
    turn, waiting = anyio.CapacityLimiter(1), anyio.Semaphore(_WAITING)

    async def program(request: Request) -> Response:
        body = await _body(request)
        try:
            waiting.acquire_nowait()
        except anyio.WouldBlock:
            raise RejectionError(503, f"{_WAITING} set-ups are waiting to be priced; ask again") from None
        try:
            found = await anyio.to_thread.run_sync(partial(make, body), limiter=turn)
        finally:
            waiting.release()
        return Response(found, media_type="application/json")

    routes = [
        Route("/", _page, methods=["GET"]),
        Route("/api/models", _models, methods=["GET"]),
        Route("/api/hw", _hardware, methods=["GET"]),
        Route("/api/program", program, methods=["POST"]),
    ]
    told: Any = {RejectionError: _refused, HTTPException: _unrouted, Exception: _broken}
    served = Starlette(routes=routes, exception_handlers=told)
    served.router.redirect_slashes = False
    return Guard(served, AllowedHosts(host), token)


async def _body(request: Request) -> bytes:
    """The JSON of a request, which must be complete, in time, and within its budget."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RejectionError(
            415, f"Content-Type: expected application/json, got {plain(kind, 60) or 'none'!r}"
        )
    most, found = BUDGET.bytes, bytearray()
    too_large = RejectionError(413, f"the body has more than {most:,} bytes")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and (len(length) > 12 or int(length) > most):
        raise too_large
    try:
        with anyio.fail_after(_PATIENCE):
            async for piece in request.stream():
                found += piece
                if len(found) > most:
                    raise too_large
    except TimeoutError:
        raise RejectionError(408, f"the body did not come within {_PATIENCE:g} s") from None
    except ClientDisconnect:
        raise RejectionError(400, "the body ended early") from None
    return bytes(found)


async def _page(request: Request) -> Response:
    page, policy = await anyio.to_thread.run_sync(_first)
    headers = {"content-security-policy": f"{policy}; frame-ancestors 'none'"}
    return Response(page, media_type="text/html", headers=headers)


@lru_cache(maxsize=1)
def _first() -> tuple[str, str]:
    said = read(json.dumps({"model": MODEL}).encode())
    return bundle.server_page(said.setup(), said.name, _START, __version__)


async def _models(request: Request) -> Response:
    return JSONResponse({"models": await anyio.to_thread.run_sync(_presets)})


@lru_cache(maxsize=1)
def _presets() -> list[dict[str, Any]]:
    return [
        {
            "name": preset.name,
            "hf_id": preset.hf_id,
            "architectures": list(preset.architectures),
            "parameters": preset.parameters,
        }
        for preset in presets.PRESETS.values()
    ]


async def _hardware(request: Request) -> Response:
    found = await anyio.to_thread.run_sync(lambda: list(devices()))
    names = {"names": library.names(), "clusters": library.clusters(), "engines": library.engines()}
    return JSONResponse({"devices": found, **names})


async def _refused(request: Request, refused: Any) -> Response:
    headers = {"connection": "close"} if refused.status in (408, 413, 415) else None
    return JSONResponse({"error": refused.why}, refused.status, headers)


async def _unrouted(request: Request, error: Any) -> Response:
    """The response to an unknown path or method."""
    there = "GET /, /api/models, /api/hw and POST /api/program"
    path = f"{request.method} {plain(request.url.path, 80)}"
    return JSONResponse({"error": f"{path}: there are {there} alone"}, error.status_code, error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    said = plain(f"{type(error).__name__}: {error}", 300)
    return JSONResponse({"error": f"a bug in llmir: {said}"}, 500)
