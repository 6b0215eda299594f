"""The endpoints that look after the server: models, health, metrics, and the document that describes them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from sanic import Blueprint, HTTPResponse, NotFound, Request, empty, text

from kvprompt.dialects.fields import DEFAULT_MODEL, MODELS_THAT_SAY

from .answering import json_response
from .dialects.reply import Json
from .openapi import document
from .wire import Backend, Metric, Status

MODELS = (DEFAULT_MODEL, *MODELS_THAT_SAY)  # names with a meaning; any other is answered, too
STARTED = int(time.time())


def operations() -> Blueprint:
    """Everything that needs no model."""
    blueprint = Blueprint("operations")
    blueprint.add_route(root, "/", methods=["HEAD"])
    reads: dict[str, Callable[..., Coroutine[Any, Any, HTTPResponse]]] = {
        "/v1/models": models,
        "/v1/models/<name:str>": model,
        "/health": health,
        "/metrics": metrics,
        "/openapi.json": openapi,
    }
    for path, handler in reads.items():
        blueprint.add_route(handler, path, methods=["GET", "HEAD"])
    return blueprint


async def root(request: Request) -> HTTPResponse:
    """A sign of life, which some clients ask for before anything else."""
    return empty(200)


async def models(request: Request) -> HTTPResponse:
    """The models, as OpenAI and Anthropic list them."""
    names = _names(request)
    page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return json_response({"object": "list", "data": [_model(name) for name in names]} | page)


async def model(request: Request, name: str) -> HTTPResponse:
    """One model."""
    names = _names(request)
    if name not in names:
        raise NotFound(f"there is no model '{name}' in the list; it has {', '.join(names)}")
    return json_response(_model(name))


async def health(request: Request) -> HTTPResponse:
    """200 when requests are answered, 503 before and after."""
    status = _status(request)
    told = {"status": status.state, "queued": status.queued, "sessions": status.sessions}
    return json_response(told, 200 if status.state == "ready" else 503)


async def metrics(request: Request) -> HTTPResponse:
    """Counters in Prometheus' text format."""
    status = _status(request)
    ready = {state: float(state == status.state) for state in ("loading", "ready", "stopping")}
    own = (
        Metric("state", "1 for the state that the server is in.", ready, "state", "gauge"),
        Metric("queued", "Requests that wait.", {"": status.queued}, kind="gauge"),
        Metric("sessions", "Live conversations.", {"": status.sessions}, kind="gauge"),
    )
    lines = [line for metric in (*own, *status.metrics) for line in _exposed(metric)]
    return text("\n".join(lines) + "\n", content_type="text/plain; version=0.0.4; charset=utf-8")


async def openapi(request: Request) -> HTTPResponse:
    """The OpenAPI document."""
    return json_response(document())


def _status(request: Request) -> Status:
    backend: Backend | None = request.app.ctx.backend
    return Status("loading") if backend is None else backend.status()


def _names(request: Request) -> list[str]:
    """The model's own name, if it has one, and those with a meaning."""
    return [name for name in dict.fromkeys((_status(request).model, *MODELS)) if name]


def _model(name: str) -> Json:
    openai = {"id": name, "object": "model", "created": STARTED, "owned_by": "ds4kv"}
    born = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(STARTED))
    return openai | {"type": "model", "display_name": name, "created_at": born}


def _exposed(metric: Metric) -> Iterator[str]:
    name = f"ds4kv_{metric.name}"
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    for value, number in metric.values.items():
        yield f"{name}{_label(metric.label, value)} {number:g}" if metric.label else f"{name} {number:g}"


def _label(label: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{{label}="{escaped}"}}'
