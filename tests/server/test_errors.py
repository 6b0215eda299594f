"""Requests that get no answer: who says so, in which shape, and what the official SDKs make of it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import ErrorResponse

from kvserver.app import BODY_LIMIT
from kvserver.settings import Settings
from kvserver.wire import Failed, Finished, Started, Usage
from server.fakes import FakeBackend, serving, spoken
from server.reading import BODIES, events

MESSAGES = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FakeBackend()) as url:
        yield url


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    with serving(FakeBackend(), Settings(api_key="sésame")) as url:
        yield url


def refusal(path: str, answer: httpx2.Response) -> dict[str, Any]:
    """The inner error, after a check of its dialect's shape."""
    body = answer.json()
    if path.startswith(MESSAGES):
        ErrorResponse.model_validate(body)
        assert body["type"] == "error"
    else:
        assert list(body) == ["error"]
    return body["error"]


@pytest.mark.parametrize("path", BODIES)
class TestEveryDialect:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'"text"',
            b"\x00",
            b'{"messages": [}',
            b'{"messages": 5, "input": 5, "prompt": "x", "stream": "yes"}',
            b'{"messages": [], "input": "x", "prompt": "x", "temperature": NaN}',
            b"[" * 100_000,
            b'{"messages":' + b"[" * 100_000,
            b'{"model": 7, "messages": [], "input": [], "prompt": ""}',
        ],
    )
    def test_what_cannot_be_read_is_a_400_with_a_sentence(self, url: str, path: str, body: bytes) -> None:
        answer = httpx2.post(url + path, content=body)
        assert answer.status_code == 400
        error = refusal(path, answer)
        assert error["type"] == "invalid_request_error" and error["message"]

    @pytest.mark.parametrize(
        "more",
        [
            b'"temperature": 1e400',
            b'"seed": ' + b"9" * 5000,
            b'"max_tokens": -5',
            b'"user": "a\\u0000b"',
            b'"model": "a\\u0000b\\ud800c"',
            b'"model": "\xff\xfe"',
            b'"unknown": {"deep": [1, 2, {"x": null}]}',
        ],
    )
    def test_what_is_odd_but_can_be_read_is_answered(self, url: str, path: str, more: bytes) -> None:
        body = json.dumps(BODIES[path] | {"stream": False}).encode()[:-1] + b"," + more + b"}"
        answer = httpx2.post(f"{url}{path}/?beta=true", content=body)
        assert answer.status_code == 200
        answer.json()

    @pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "application/json; x=y"}])
    def test_the_content_type_does_not_matter(self, url: str, path: str, headers: dict[str, str]) -> None:
        answer = httpx2.post(url + path, content=json.dumps(BODIES[path]), headers=headers)
        assert answer.status_code == 200

    def test_a_full_queue_is_a_429_that_says_when_to_come_back(self, path: str) -> None:
        with serving(FakeBackend(full=True)) as url:
            answer = httpx2.post(url + path, json=BODIES[path])
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "7"
        assert refusal(path, answer)["type"] == "rate_limit_error"

    @pytest.mark.parametrize("backend", [None, FakeBackend(state="stopping")])
    def test_before_the_model_is_there_and_at_the_end_it_is_503(self, path: str, backend: FakeBackend | None) -> None:
        with serving(backend) as url:
            answer = httpx2.post(url + path, json=BODIES[path])
        assert answer.status_code == 503
        refusal(path, answer)

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_that_is_too_long_says_how_long_it_is(self, path: str, stream: bool) -> None:
        members = {"n_prompt_tokens": 40000, "n_ctx": 32768}
        failed = Failed(400, "the prompt is too long", "context_length_exceeded", members)
        with serving(FakeBackend([failed])) as url:
            answer = httpx2.post(url + path, json=BODIES[path] | {"stream": stream})
        assert answer.status_code == 400
        error = refusal(path, answer)
        assert error["n_prompt_tokens"] == 40000 and error["n_ctx"] == 32768
        if path != MESSAGES:
            assert error["code"] == "context_length_exceeded"
            assert error["param"] in BODIES[path]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_fault_of_the_engine_is_a_500(self, path: str, stream: bool) -> None:
        with serving(FakeBackend([Failed(500, "the prefill failed")])) as url:
            answer = httpx2.post(url + path, json=BODIES[path] | {"stream": stream})
        assert answer.status_code == 500
        assert refusal(path, answer)["message"] == "the prefill failed"

    def test_a_fault_after_the_headers_is_an_event(self, path: str) -> None:
        script = [*spoken("", "Hello")[:-1], Failed(500, "no memory")]
        with serving(FakeBackend(script)) as url:
            answer = httpx2.post(url + path, json=BODIES[path] | {"stream": True})
        last = events(answer.text)[-1]
        assert "no memory" in json.dumps(last.data)
        assert last.name == ("" if path == "/v1/responses" else "error")

    def test_a_fault_of_ours_is_told_without_a_traceback(self, path: str, caplog: pytest.LogCaptureFixture) -> None:
        broken = Finished(None, "stop", Usage(1, 0))  # type: ignore[arg-type]
        with serving(FakeBackend([Started(Usage(1, 0)), broken])) as url:
            answer = httpx2.post(url + path, json=BODIES[path])
            assert answer.status_code == 500
            assert "Traceback" not in answer.text
            assert "AttributeError" in caplog.text
            assert httpx2.get(f"{url}/health").status_code == 200

    def test_other_methods_are_a_405(self, url: str, path: str) -> None:
        answer = httpx2.get(url + path)
        assert answer.status_code == 405 and answer.headers["allow"] == "POST"
        refusal(path, answer)


def test_an_unknown_path_is_a_404(url: str) -> None:
    for path in ("/v1/embeddings", "/v1/messages/batches", "/"):
        answer = httpx2.post(url + path) if path != "/" else httpx2.get(f"{url}/none")
        assert answer.status_code == 404
        refusal(path, answer)


class TestLimits:
    def test_long_headers_are_welcome_up_to_64_kib(self, url: str) -> None:
        path = "/v1/completions"
        answer = httpx2.post(url + path, json=BODIES[path], headers={"x-agent": "a" * 60_000})
        assert answer.status_code == 200

    def test_longer_headers_are_refused(self, url: str) -> None:
        answer = _raw(url, b"GET /health HTTP/1.1\r\nx: " + b"a" * 140_000 + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 413 ") and b'"error"' in answer

    def test_a_body_above_64_mib_is_refused_before_it_is_read(self, url: str) -> None:
        head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (BODY_LIMIT + 1)
        answer = _raw(url, head)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"request_too_large" in answer

    def test_what_is_not_http_is_a_400(self, url: str) -> None:
        assert _raw(url, b"\x16\x03\x01hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")


class TestKey:
    @pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer other"}, {"x-api-key": "b\xe4d"}])
    def test_without_it_nothing_is_answered(self, locked: str, headers: dict[str, str]) -> None:
        wrong = {name: value.encode("latin-1") for name, value in headers.items()}
        for path in BODIES:
            answer = httpx2.post(locked + path, json=BODIES[path], headers=wrong)
            assert answer.status_code == 401
            expected = "authentication_error" if path == MESSAGES else "invalid_request_error"
            assert refusal(path, answer)["type"] == expected
        assert httpx2.get(f"{locked}/metrics", headers=wrong).status_code == 401

    @pytest.mark.parametrize("header", ["x-api-key", "authorization"])
    def test_with_it_everything_is(self, locked: str, header: str) -> None:
        value = "sésame" if header == "x-api-key" else "Bearer sésame"
        answer = httpx2.post(f"{locked}/v1/responses", json={"input": "x"}, headers={header: value.encode()})
        assert answer.status_code == 200

    def test_signs_of_life_need_none(self, locked: str) -> None:
        assert httpx2.head(locked).status_code == 200
        assert httpx2.get(f"{locked}/health").status_code == 200


class TestCors:
    def test_without_the_option_no_origin_is_allowed(self, url: str) -> None:
        answer = httpx2.get(f"{url}/health", headers={"origin": "http://page"})
        assert "access-control-allow-origin" not in answer.headers

    @pytest.mark.parametrize("origin", ["http://page", "*"])
    def test_with_it_answers_streams_errors_and_preflights_carry_it(self, origin: str) -> None:
        settings = Settings(cors=origin, api_key="k")
        key = {"x-api-key": "k"}
        with serving(FakeBackend(), settings) as url:
            preflight = httpx2.options(
                f"{url}/v1/messages", headers={"access-control-request-headers": "x-api-key, content-type"}
            )
            answers = [
                preflight,
                httpx2.post(f"{url}/v1/completions", json={"prompt": "x", "stream": True}, headers=key),
                httpx2.post(f"{url}/v1/completions", json={}, headers=key),
                httpx2.get(f"{url}/nowhere"),
                httpx2.get(f"{url}/health"),
            ]
        assert [answer.status_code for answer in answers] == [204, 200, 400, 401, 200]
        assert {answer.headers["access-control-allow-origin"] for answer in answers} == {origin}
        assert preflight.headers["access-control-allow-headers"] == "x-api-key, content-type"


class TestSDK:
    """The exceptions that the official clients raise."""

    def test_openai(self, url: str) -> None:
        with serving(FakeBackend(full=True)) as full, _openai(full) as client, pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=HI)
        with _openai(url) as client, pytest.raises(openai.BadRequestError, match="image_url"):
            image = {"type": "image_url", "image_url": {"url": "data:,"}}
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": [image]}])
        broken = FakeBackend([*spoken("", "x")[:-1], Failed(500, "no memory")])
        with serving(broken) as url, _openai(url) as client, pytest.raises(openai.APIError, match="no memory"):
            list(client.chat.completions.create(model="m", messages=HI, stream=True))

    def test_anthropic(self) -> None:
        backend = FakeBackend(full=True)
        with serving(backend) as url, _anthropic(url) as client:
            with pytest.raises(anthropic.RateLimitError, match="too many requests"):
                client.messages.create(model="m", max_tokens=9, messages=HI)
            backend.full = False
            backend.script = [*spoken("", "x")[:-1], Failed(500, "no memory")]
            with (
                pytest.raises(anthropic.APIStatusError, match="no memory"),
                client.messages.stream(model="m", max_tokens=9, messages=HI) as stream,
            ):
                stream.get_final_message()


def _openai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)


def _anthropic(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="-", max_retries=0)


def _raw(url: str, request: bytes) -> bytes:
    """What a server says to these bytes before it closes, or within two seconds."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.sendall(request)
        answer = b""
        while b"}" not in answer and (more := connection.recv(65536)):
            answer += more
    return answer
