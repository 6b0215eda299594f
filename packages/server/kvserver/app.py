"""The Sanic application: limits, the key, CORS, and how every refusal looks to the client that it concerns."""

from __future__ import annotations

import hmac
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from sanic import Config, HTTPResponse, Request, Sanic, SanicException, empty
from sanic.http import Http
from sanic.response import BaseHTTPResponse
from sanic.server import HttpProtocol

from kvprompt.errors import BadRequest

from .answering import answers, json_response, path_of
from .errors import Refused, Unauthorized, error_body
from .lingering import Lingering
from .operating import operations
from .settings import Settings
from .wire import Backend, Failed

log = logging.getLogger("kvserver")

App = Sanic[Config, SimpleNamespace]

BODY_LIMIT = 64 << 20
HEADER_LIMIT = 64 << 10
KEEPALIVE = 5.0  # seconds without a byte before a stream shows that it is alive
PATIENCE = 7 * 24 * 3600  # seconds that a request may take to be answered
TOKENISERS = 2  # long prompts at a time
OPEN_TO_ALL = frozenset({"/", "/health"})


def create_app(
    settings: Settings, backend: Backend | None = None, *, name: str = "kvserve", keepalive: float = KEEPALIVE
) -> App:
    """The application. Without a backend it says that it is loading, until one is put into `app.ctx.backend`."""
    tokenising = ThreadPoolExecutor(TOKENISERS, "tokenising")
    context = SimpleNamespace(settings=settings, backend=backend, keepalive=keepalive, tokenising=tokenising)
    app = Sanic(name, config=_config(), ctx=context, configure_logging=False)
    app.blueprint(answers())
    app.blueprint(operations())
    app.error_handler.add(Exception, refuse)
    app.register_middleware(admit, "request")
    if settings.cors:
        app.register_middleware(share, "response")
    return app


def _config() -> Config:
    Http.HEADER_CEILING = HEADER_LIMIT
    HttpProtocol.HTTP_CLASS = Lingering
    return Config(
        {
            "AUTO_EXTEND": False,
            "DEPRECATION_FILTER": "ignore",
            "REQUEST_BUFFER_SIZE": 2 * HEADER_LIMIT,
            "REQUEST_MAX_HEADER_SIZE": HEADER_LIMIT,
            "REQUEST_MAX_SIZE": BODY_LIMIT,
            "RESPONSE_TIMEOUT": PATIENCE,  # it would also cut a stream whose client reads slowly
            "USE_UVLOOP": False,  # with it a Ctrl-C can surface as KeyboardInterrupt inside a request (measured)
        }
    )


async def admit(request: Request) -> HTTPResponse | None:
    """Answer what browsers ask beforehand, and turn away whoever lacks the key."""
    settings: Settings = request.app.ctx.settings
    if request.method == "OPTIONS":
        return empty(204)
    if settings.api_key is None or request.path in OPEN_TO_ALL:
        return None
    given = request.headers.get("x-api-key") or request.headers.get("authorization", "").partition(" ")[2]
    if not hmac.compare_digest(given.encode(errors="surrogateescape"), settings.api_key.encode()):
        raise Unauthorized
    return None


def share(request: Request, response: BaseHTTPResponse) -> None:
    """Let pages of the allowed origin read the answer."""
    origin = request.app.ctx.settings.cors
    response.headers["Access-Control-Allow-Origin"] = origin
    response.headers["Vary"] = "Origin"
    if request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, OPTIONS"
        response.headers["Access-Control-Allow-Headers"] = request.headers.get("access-control-request-headers", "*")
        response.headers["Access-Control-Max-Age"] = "86400"


async def refuse(request: Request, fault: Exception) -> HTTPResponse:
    """The answer to a request that gets none, in its dialect's own shape."""
    headers = {}
    if isinstance(fault, Refused):
        failed = fault.failed
        if fault.retry_after is not None:
            headers["Retry-After"] = str(fault.retry_after)
    elif isinstance(fault, BadRequest):
        failed = Failed(fault.status, str(fault))
    elif isinstance(fault, SanicException) and fault.status_code < 500:
        failed = Failed(fault.status_code, str(fault))
        headers |= fault.headers
    else:
        log.error("%s %s failed", request.method, request.path, exc_info=fault)
        failed = Failed(500, "the server failed on this request; its log says more")
    return json_response(error_body(path_of(request), failed), failed.status, headers)
