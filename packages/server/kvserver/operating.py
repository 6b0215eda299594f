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
PARAMETERS = (
    *("tools", "tool_choice", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "stream"),
    *("reasoning_effort", "logprobs", "top_logprobs"),
)  # of a chat, those that change the answer: ds4-server's list, and two more
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
    return json_response({"object": "list", "data": [_model(request, name) for name in names]} | page)


async def model(request: Request, name: str) -> HTTPResponse:
    """One model."""
    names = _names(request)
    if name not in names:
        raise NotFound(f"there is no model '{name}' in the list; it has {', '.join(names)}")
    return json_response(_model(request, name))


async def health(request: Request) -> HTTPResponse:
    """200 when requests are answered, 503 before and after."""
    status = _status(request)
    told = {"status": status.state, "queued": status.queued, "sessions": status.sessions}
    return json_response(
        told | {"context_length": request.app.ctx.settings.ctx}, 200 if status.state == "ready" else 503
    )


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


def _model(request: Request, id: str) -> Json:
    """One model as OpenAI, ds4-server and Anthropic describe it; `name` is the model that answers, whatever it is called."""
    context = request.app.ctx.settings.ctx
    openai = {"id": id, "object": "model", "created": STARTED, "owned_by": "ds4kv"}
    limits = {"context_length": context, "max_completion_tokens": context, "is_moderated": False}
    ds4 = {"name": _status(request).model or id, "context_length": context, "top_provider": limits}
    told = {"supported_parameters": PARAMETERS}
    born = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(STARTED))
    anthropic = {"type": "model", "display_name": id, "created_at": born, "lifecycle": "active"}
    return openai | ds4 | told | anthropic | {"max_input_tokens": context, "max_tokens": context}


def _exposed(metric: Metric) -> Iterator[str]:
    name = f"ds4kv_{metric.name}"
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    for value, number in metric.values.items():
        yield f"{name}{_label(metric.label, value)} {number:g}" if metric.label else f"{name} {number:g}"


def _label(label: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{{label}="{escaped}"}}'
