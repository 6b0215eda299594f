"""Bodies and headers above the limit: whoever sends them reads why they are refused, and not that the connection was reset."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from kvserver import lingering
from kvserver.app import BODY_LIMIT
from server.fakes import FakeBackend, serving
from server.reading import BODIES
from server.test_main import kvserve, url_of

MESSAGES = "/v1/messages"
TEXT = "a" * BODY_LIMIT
PIECE = b"a" * (1 << 20)
PATHS = [*BODIES, f"{MESSAGES}/count_tokens", "/nowhere"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server process of its own."""
    with kvserve("hello") as process:
        yield url_of(process)


def check(path: str, body: bytes, status: int = 413) -> None:
    """The refusal in the shape of the dialect of `path`."""
    told = json.loads(body)
    assert ("type" in told) == path.startswith(MESSAGES)
    types = ("request_too_large", "not_found_error") if path.startswith(MESSAGES) else ("invalid_request_error",)
    assert told["error"]["type"] in types and told["error"]["message"]
    assert status == (404 if path == "/nowhere" else 413)


def whole() -> bytes:
    return PIECE * 65


def in_pieces() -> Iterator[bytes]:
    for _ in range(65):
        yield PIECE


@pytest.mark.parametrize("content", [whole, in_pieces], ids=["length", "chunked"])
@pytest.mark.parametrize("path", PATHS)
def test_httpx_reads_why(url: str, path: str, content: Callable[[], Any]) -> None:
    answer = httpx2.post(url + path, content=content())
    check(path, answer.content, answer.status_code)


@pytest.mark.parametrize("query", ["", "?beta=true"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("path", PATHS)
def test_who_reads_only_when_all_is_sent_reads_why(url: str, path: str, chunked: bool, query: str) -> None:
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {65 * len(PIECE)}"
    head = f"POST {path}{query} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n".encode()
    pieces = [b"%x\r\n%b\r\n" % (len(PIECE), PIECE)] * 65 + [b"0\r\n\r\n"] if chunked else [PIECE] * 65
    status, body = spoken_to(url, [head, *pieces])
    check(path, body, status)


def test_who_sends_more_than_it_announced_reads_why(url: str) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (BODY_LIMIT + 1)
    status, body = spoken_to(url, [head, *[PIECE] * 70])
    check(MESSAGES, body, status)


def test_who_sends_long_headers_reads_why(url: str) -> None:
    status, body = spoken_to(url, [b"POST /v1/messages HTTP/1.1\r\nx: ", *[PIECE] * 8, b"\r\n\r\n"])
    assert status == 413
    assert json.loads(body)["error"]["type"] == "invalid_request_error"  # whose path it is was not read


def connected(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def spoken_to(url: str, pieces: list[bytes]) -> tuple[int, bytes]:
    """Status and body of what a server says to one who sends everything first, and that it then ends the connection."""
    with connected(url) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"413" not in head or b"connection: close" in head
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("bound", "value", "piece", "pause"),
    [("PATIENCE", 0.01, b"a", 0.1), ("MOST", len(PIECE), PIECE, 0.0)],
    ids=["silent", "endless"],
)
def test_nobody_is_listened_to_for_ever(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: float, piece: bytes, pause: float
) -> None:
    monkeypatch.setattr(lingering, bound, value)
    with serving(FakeBackend()) as url, connected(url) as connection:
        connection.sendall(b"POST /v1/messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (BODY_LIMIT + 1))
        assert b" 413 " in connection.recv(65536)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(100):
                connection.sendall(piece)
                time.sleep(pause)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
class TestSDK:
    """What the official clients raise is the refusal, and no connection error that they would try again."""

    def test_openai(self, url: str, stream: bool) -> None:
        messages = [{"role": "user", "content": TEXT}]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
            for ask in (
                lambda: client.chat.completions.create(model="m", messages=messages, stream=stream),
                lambda: client.completions.create(model="m", prompt=TEXT, stream=stream),
                lambda: client.responses.create(model="m", input=TEXT, stream=stream),
            ):
                with pytest.raises(openai.APIStatusError, match="exceeds the size limit") as told:
                    ask()
                assert told.value.status_code == 413

    def test_anthropic(self, url: str, stream: bool) -> None:
        messages = [{"role": "user", "content": TEXT}]
        with (
            anthropic.Anthropic(base_url=url, api_key="-", max_retries=0) as client,
            pytest.raises(anthropic.APIStatusError, match="exceeds the size limit") as told,
        ):
            client.messages.create(model="m", max_tokens=9, messages=messages, stream=stream)
        assert told.value.status_code == 413
