"""The OpenAPI document. It tells what the parsers really accept: they ignore more than they refuse, and so does it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from kvprompt.conversation import RESULT_ROLES
from kvprompt.dialects.fields import EFFORTS, UNSEEN
from kvprompt.dialects.responses import BOOKKEEPING, CALLS, HOSTED_CALLS, HOSTED_OUTPUTS, OUTPUTS, TEXT_PARTS

Schema = dict[str, Any]

ANY: Schema = {}
TEXT: Schema = {"type": ["string", "null"]}
FLAG: Schema = {"type": ["boolean", "null"]}
NUMBER: Schema = {"type": ["number", "null"]}
COUNT: Schema = {"type": "integer", "minimum": 0}
EFFORT: Schema = {"enum": [None, "", *EFFORTS]}
NOT_AN_OBJECT: Schema = {"type": ["string", "number", "boolean", "null", "array"]}
OBJECTS: Schema = {"type": ["array", "null"], "items": {"type": "object"}}
PICTURE: Schema = {"type": "object", "required": ["type"], "properties": {"type": {"enum": sorted(UNSEEN)}}}


def document() -> Schema:
    """The whole document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "ds4kv", "version": version("ds4kv")},
        "paths": {
            "/v1/chat/completions": _answering("Chat completions", "Chat", "ChatCompletion"),
            "/v1/completions": _answering("Completions", "Completion", "TextCompletion"),
            "/v1/responses": _answering("Responses", "Responses", "Response"),
            "/v1/messages": _answering("Anthropic Messages", "Messages", "Message"),
            "/v1/messages/count_tokens": _posting("Tokens of a Messages request", "Messages", {"200": _json("Count")}),
            "/v1/models": _getting("The models", {"200": _json("Models")}),
            "/v1/models/{name}": _getting("One model", {"200": _json("Model")}) | {"parameters": [_NAME]},
            "/health": _getting("Whether requests are answered", {"200": _json("Health"), "503": _json("Health")}),
            "/metrics": _getting("Counters for Prometheus", {"200": _content("text/plain", {"type": "string"})}),
            "/openapi.json": _getting("This document", {"200": _content("application/json", {"type": "object"})}),
            "/": {"head": _operation("A sign of life", {"200": {"description": "The server is there."}})},
        },
        "components": {
            "schemas": _requests() | _parts() | _items() | _answers(),
            "responses": {"Refused": _json("Error")},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


# ---- operations


def _answering(summary: str, request: str, answer: str) -> Schema:
    stream = {"text/event-stream": {"schema": _object(["data"], event={"type": "string"}, data={"type": "string"})}}
    whole = _json(answer)
    return _posting(summary, request, {"200": whole | {"content": whole["content"] | stream}})


def _posting(summary: str, request: str, responses: Schema) -> Schema:
    body = {"required": True, "content": {"application/json": {"schema": _ref(request)}}}
    return {"post": _operation(summary, responses) | {"requestBody": body}}


def _getting(summary: str, responses: Schema) -> Schema:
    return {"get": _operation(summary, responses)}


def _operation(summary: str, responses: Schema) -> Schema:
    return {"summary": summary, "responses": responses | {"default": {"$ref": "#/components/responses/Refused"}}}


def _json(name: str) -> Schema:
    return _content("application/json", _ref(name))


def _content(kind: str, schema: Schema) -> Schema:
    return {"description": "As the schema says.", "content": {kind: {"schema": schema}}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


# ---- what is read


def _requests() -> Schema:
    openai = {"stop": ANY, "stream_options": _if_object(include_usage=FLAG)} | _thinking()
    chat = {"messages": _array("ChatMessage"), "tools": _list("Tool"), "tool_choice": ANY, "logprobs": FLAG}
    limits = {"max_tokens": NUMBER, "top_k": NUMBER}
    seeded = limits | {"min_p": NUMBER, "seed": NUMBER}
    return {
        "Chat": _request(["messages"], chat | openai | seeded, max_completion_tokens=NUMBER, top_logprobs=NUMBER),
        "Completion": _request(["prompt"], openai | seeded, prompt={"not": {"type": "null"}}, logprobs=NUMBER),
        "Messages": _request(
            ["messages"],
            limits | {"thinking": _if_object(type=TEXT)},
            messages=_array("AnthropicMessage"),
            system={"anyOf": [{"type": ["string", "number", "boolean", "null", "object"]}, _array("Part")]},
            tools=_list("Tool"),
            tool_choice=_if_object(type=TEXT),
            stop_sequences=ANY,
            output_config=_if_object(effort=EFFORT),
        ),
        "Responses": _request(
            ["input"],
            {"max_output_tokens": NUMBER, "max_tokens": NUMBER, "top_logprobs": NUMBER},
            input={"anyOf": [{"type": "string"}, {"type": "array", "items": _ref("Item")}]},
            instructions=TEXT,
            tools=_list("Tool"),
            tool_choice={"enum": [None, "auto", "none"]},
            reasoning=_if_object(effort=EFFORT, summary=TEXT),
            previous_response_id={"type": "null", "description": "Nothing is kept: replay the full input."},
            conversation={"type": "null"},
        ),
    }


def _request(required: list[str], more: Schema, **properties: Schema) -> Schema:
    shared = {"model": TEXT, "stream": FLAG, "temperature": NUMBER, "top_p": NUMBER}
    return {"type": "object", "required": required, "properties": shared | more | properties}


def _thinking() -> Schema:
    return {"thinking": _if_object(type=TEXT), "think": FLAG, "reasoning_effort": EFFORT}


def _parts() -> Schema:
    parts, results, blocks = _array_or_value("Part"), _array_or_value("Result"), _array_or_value("Block")
    seen = {"not": {"enum": sorted(UNSEEN)}}
    message = {"reasoning_content": parts, "tool_call_id": TEXT, "tool_calls": OBJECTS}
    return {
        "ChatMessage": {
            "anyOf": [
                _object(role=TEXT, content=parts, **message),
                _object(["role"], role={"enum": sorted(RESULT_ROLES)}, content=results, **message),
            ]
        },
        "AnthropicMessage": _object(role=TEXT, content=blocks),
        "Part": {"anyOf": [NOT_AN_OBJECT, _object(type=seen, text=TEXT)]},
        "Result": {"anyOf": [NOT_AN_OBJECT, _object(text=TEXT), PICTURE]},
        "Block": {"anyOf": [NOT_AN_OBJECT, *_blocks(parts, results)]},
        "Tool": {"anyOf": [NOT_AN_OBJECT, _object(["function"], function=_if_object(name=TEXT)), _object(name=TEXT)]},
    }


def _blocks(parts: Schema, results: Schema) -> list[Schema]:
    use = _object(["type"], type={"const": "tool_use"}, id=TEXT, name=TEXT)
    result = _object(["type"], type={"const": "tool_result"}, tool_use_id=TEXT, content=results)
    other = {"type": ["string", "null"], "not": {"enum": ["tool_use", "tool_result", *sorted(UNSEEN)]}}
    return [use, result, _object(type=other, text=parts, thinking=parts)]


def _items() -> Schema:
    """Items of Responses. Their text must be text; what else it might be is refused, but in the result of a tool."""
    strict, results = _array_or_value("ItemPart"), _array_or_value("ItemResult")
    told = {"status": {"enum": [None, "", "completed", "incomplete"]}}
    return {
        "Item": {
            "anyOf": [
                _item([None, "message"], role=TEXT, content=strict, **told) | {"required": []},
                _item(["reasoning"], summary=strict, content=strict, **told),
                _item(sorted(CALLS), call_id=TEXT, name=TEXT, namespace=TEXT),
                _item(sorted(HOSTED_CALLS), call_id=TEXT),
                _item(sorted(OUTPUTS | HOSTED_OUTPUTS), call_id=TEXT, output=results),
                _item(sorted(BOOKKEEPING)),
            ]
        },
        "ItemPart": {"anyOf": [{"type": "string"}, _object(["type"], type={"enum": sorted(TEXT_PARTS)}, text=TEXT)]},
        "ItemResult": {"anyOf": [_ref("ItemPart"), PICTURE]},
    }


def _item(types: list[Any], **properties: Schema) -> Schema:
    return _object(["type"], **{"type": {"enum": types}, "status": {"enum": [None, "", "completed"]}} | properties)


def _list(name: str) -> Schema:
    return {"type": ["array", "null"], "items": _ref(name)}


def _array_or_value(name: str) -> Schema:
    return {"anyOf": [{"type": ["string", "number", "boolean", "null", "object"]}, _array(name)]}


def _array(name: str) -> Schema:
    return {"type": "array", "items": _ref(name)}


def _object(required: list[str] | None = None, /, **properties: Schema) -> Schema:
    return {"type": "object", "required": required or [], "properties": properties}


def _if_object(**properties: Schema) -> Schema:
    """Anything, for what is no object is ignored."""
    return {"anyOf": [NOT_AN_OBJECT, _object(**properties)]}


# ---- what is written


def _answers() -> Schema:
    text, objects = {"type": "string"}, {"type": "array", "items": {"type": "object"}}
    openai = {"id": text, "model": text, "object": text, "created": COUNT, "choices": objects, "usage": _ref("Usage")}
    return {
        "ChatCompletion": _all(openai),
        "TextCompletion": _all(openai),
        "Message": _all({"id": text, "type": {"const": "message"}, "content": objects, "usage": {"type": "object"}}),
        "Response": _all({"id": text, "status": text, "output": objects, "usage": {"type": "object"}}),
        "Usage": _all({"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT}),
        "Count": _all({"input_tokens": COUNT}),
        "Model": _all(_model(text)),
        "Models": _all({"object": {"const": "list"}, "data": {"type": "array", "items": _ref("Model")}}),
        "Health": _all(
            {"status": {"enum": ["loading", "ready", "stopping"]}}
            | {"queued": COUNT, "sessions": COUNT, "context_length": COUNT}
        ),
        "Error": _all({"error": _all({"message": text, "type": text})}),
    }


def _model(text: Schema) -> Schema:
    limits = {"context_length": COUNT, "max_completion_tokens": COUNT, "is_moderated": {"const": False}}
    openai = {"id": text, "object": {"const": "model"}, "created": COUNT, "owned_by": text}
    ds4 = {"name": text, "context_length": COUNT, "top_provider": _all(limits)}
    told = {"supported_parameters": {"type": "array", "items": text}}
    anthropic = {"type": {"const": "model"}, "display_name": text, "created_at": text, "lifecycle": {"const": "active"}}
    return openai | ds4 | told | anthropic | {"max_input_tokens": COUNT, "max_tokens": COUNT}


def _all(properties: Schema) -> Schema:
    return {"type": "object", "required": list(properties), "properties": properties}
