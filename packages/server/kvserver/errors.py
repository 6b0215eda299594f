"""Why a request gets no answer, and how each dialect says so."""

from __future__ import annotations

from typing import Any

from .wire import Failed

ANTHROPIC_PATHS = "/v1/messages"
PARAMS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/responses": "input"}

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPENAI_TYPES = {429: "rate_limit_error"}


class Refused(Exception):
    """No answer, for the reason of `failed`; `retry_after` is in seconds, where trying again is worth it."""

    def __init__(self, failed: Failed, retry_after: int | None = None) -> None:
        self.failed = failed
        self.retry_after = retry_after
        super().__init__(failed.message)


class QueueFull(Refused):
    """As many requests wait as may."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(Failed(429, "too many requests are waiting; try again later", "queue_full"), retry_after)


class ShuttingDown(Refused):
    """The server is about to end."""

    def __init__(self) -> None:
        super().__init__(Failed(503, "the server is shutting down", "shutting_down"))


class StillLoading(Refused):
    """The model is not there yet."""

    def __init__(self) -> None:
        super().__init__(Failed(503, "the model is still being loaded; /health says when it is ready", "loading"), 2)


class Unauthorized(Refused):
    """The key is missing or wrong."""

    def __init__(self) -> None:
        sentence = "this server wants its API key, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
        super().__init__(Failed(401, sentence, "invalid_api_key"))


def error_body(path: str, failed: Failed) -> dict[str, Any]:
    """The body that tells a client of `path` what went wrong."""
    return anthropic_error(failed) if path.startswith(ANTHROPIC_PATHS) else openai_error(failed, PARAMS.get(path))


def openai_error(failed: Failed, param: str | None = None) -> dict[str, Any]:
    """The error of the three OpenAI dialects; `param` is the field that a prompt too long came in."""
    kind = _OPENAI_TYPES.get(failed.status) or ("invalid_request_error" if failed.status < 500 else "server_error")
    error: dict[str, Any] = {"message": failed.message, "type": kind}
    if failed.code:
        error |= {"param": param if failed.members else None, "code": failed.code}
    return {"error": error | failed.members}


def anthropic_error(failed: Failed) -> dict[str, Any]:
    """The error of the Messages dialect."""
    kind = _ANTHROPIC_TYPES.get(failed.status) or ("invalid_request_error" if failed.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": failed.message} | failed.members}
