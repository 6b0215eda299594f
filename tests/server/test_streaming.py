"""Streams over time: signs of life, clients that leave, read slowly or send a lot."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anthropic
import httpx2
import openai
import pytest

from kvprompt.conversation import Turn
from kvprompt.events import Reasoning, Text
from kvserver.app import BODY_LIMIT
from kvserver.wire import Failed, Finished, Piece, Started, Usage
from server.fakes import FakeBackend, Step, serving, spoken, until
from server.reading import BODIES, events

MESSAGES = "/v1/messages"
BEAT = 0.1
PAUSE = 0.35
BEGIN, END = Started(Usage(5, 0)), Finished(Turn("t", "x"), "stop", Usage(5, 0, 2))
STREAMED = pytest.mark.parametrize("stream", [False, True])


def texts(path: str, script: list[Step], beat: float = BEAT, **more: object) -> list[str]:
    """The blocks of a stream whose server shows a sign of life after so many seconds of silence."""
    with serving(FakeBackend(script), keepalive=beat) as url:
        answer = httpx2.post(url + path, json=BODIES[path] | {"stream": True} | more)
    assert answer.status_code == 200
    events(answer.text)
    return answer.text.split("\n\n")[:-1]


@pytest.mark.parametrize("path", BODIES)
class TestKeepalive:
    def test_in_the_queue(self, path: str) -> None:
        first, second, *_ = texts(path, [PAUSE, BEGIN, Piece(Text("x")), END])
        assert first == second == ": keepalive"

    def test_in_prefill(self, path: str) -> None:
        sign = "event: ping" if path == MESSAGES else ": keepalive"
        blocks = texts(path, [BEGIN, PAUSE, Piece(Text("x")), END])
        assert sum(block.startswith(sign) for block in blocks) >= 2
        assert not blocks[0].startswith(sign) or path == "/v1/completions"

    def test_in_decode(self, path: str) -> None:
        sign = "event: ping" if path == MESSAGES else ": keepalive"
        blocks = texts(path, [BEGIN, Piece(Text("x")), PAUSE, END])
        assert sum(block.startswith(sign) for block in blocks) >= 2

    def test_not_while_there_is_something_to_tell(self, path: str) -> None:
        script = [BEGIN, *[step for _ in range(8) for step in (0.15, Piece(Text("x")))], END]
        assert not any("keepalive" in block or "ping" in block for block in texts(path, script, beat=1.0))

    def test_a_refusal_after_it_is_an_event(self, path: str) -> None:
        blocks = texts(path, [PAUSE, Failed(400, "the prompt is too long", "context_length_exceeded")])
        assert blocks[0] == ": keepalive" and "the prompt is too long" in blocks[-1]


def test_reasoning_that_is_not_shown_is_silence_too() -> None:
    script = [BEGIN, *[step for _ in range(12) for step in (BEAT / 3, Piece(Reasoning("hm")))], END]
    blocks = texts("/v1/responses", script, reasoning={})
    assert blocks.count(": keepalive") >= 2


def test_the_sdks_do_not_mind() -> None:
    script = [PAUSE, BEGIN, PAUSE, *spoken("", "Hello")[1:]]
    hi = [{"role": "user", "content": "hi"}]
    with serving(FakeBackend(script), keepalive=BEAT) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
            chunks = client.chat.completions.create(model="m", messages=hi, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
            with client.responses.stream(model="m", input="hi") as answer:
                assert answer.get_final_response().output_text == "Hello"
        with (
            anthropic.Anthropic(base_url=url, api_key="-") as client,
            client.messages.stream(model="m", max_tokens=9, messages=hi) as stream,
        ):
            assert stream.get_final_text() == "Hello"


@pytest.mark.parametrize("path", BODIES)
@STREAMED
@pytest.mark.parametrize("script", [[9.0], [BEGIN, 9.0]], ids=["waiting", "running"])
def test_a_client_that_leaves_takes_its_job_with_it(path: str, stream: bool, script: list[Step]) -> None:
    backend = FakeBackend(script)
    with serving(backend) as url:
        with _connected(url, path, stream):
            assert until(lambda: bool(backend.jobs))
            assert not backend.jobs[0].cancelled.is_set()
        assert until(backend.jobs[0].cancelled.is_set)
        assert httpx2.get(f"{url}/health").status_code == 200


@STREAMED
def test_a_job_that_was_answered_is_not_cancelled(stream: bool) -> None:
    backend = FakeBackend()
    with serving(backend) as url:
        httpx2.post(f"{url}/v1/completions", json={"prompt": "x", "stream": stream})
        httpx2.get(f"{url}/health")
    assert not backend.jobs[0].cancelled.is_set()


def test_a_job_whose_answer_cannot_be_told_is_cancelled() -> None:
    backend = FakeBackend([BEGIN, Finished(None, "stop", Usage(1, 0))])  # type: ignore[arg-type]
    with serving(backend) as url:
        answer = httpx2.post(f"{url}/v1/responses", json={"input": "x", "stream": True})
        assert events(answer.text)[-1].data["type"] == "response.failed"
        assert until(backend.jobs[0].cancelled.is_set)


def test_a_slow_reader_gets_everything_and_holds_up_nobody() -> None:
    text = "0123456789" * 100_000
    pieces: list[Step] = [Piece(Text(text[at : at + 10_000])) for at in range(0, len(text), 10_000)]
    with (
        serving(FakeBackend([BEGIN, *pieces, *pieces, *pieces, END]), keepalive=BEAT) as url,
        _connected(url, "/v1/completions", stream=True, buffer=4096) as connection,
    ):
        time.sleep(3 * BEAT)
        assert httpx2.get(f"{url}/health").status_code == 200
        received = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert received.count(b"0123456789") == 300_000 and received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_reading_a_huge_body_leaves_health_answering() -> None:
    content = "word " * (BODY_LIMIT // 5 - 1000)
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    backend = FakeBackend()
    waits = []
    with serving(backend) as url, httpx2.Client(timeout=30) as client:
        client.get(f"{url}/health")
        sender = threading.Thread(
            target=httpx2.post, args=(f"{url}{MESSAGES}",), kwargs={"content": body, "timeout": 30}
        )
        sender.start()
        while sender.is_alive():
            began = time.monotonic()
            assert client.get(f"{url}/health").status_code == 200
            waits.append(time.monotonic() - began)
        sender.join()
    assert backend.jobs[0].conversation.messages[0].content == content
    assert len(waits) > 3


def test_characters_are_never_torn() -> None:
    with serving(FakeBackend(spoken("", "añ🙂b", finish="stop"))) as url:
        answer = httpx2.post(f"{url}/v1/completions", json={"prompt": "x", "stream": True})
    assert "".join(event.data["choices"][0]["text"] for event in events(answer.text)[:-1]) == "añ🙂b"


@contextmanager
def _connected(url: str, path: str, stream: bool, buffer: int = 0) -> Iterator[socket.socket]:
    """A connection on which a request was sent and nothing is read yet."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(BODIES[path] | {"stream": stream}).encode()
    with socket.socket() as connection:
        if buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(20)
        connection.connect((host, int(port)))
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        yield connection
