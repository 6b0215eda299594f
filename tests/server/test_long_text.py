"""Texts that are too long or take long to tokenise: refused as early as can be, and nobody else waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from kvprompt.tokenizer import Tokenizer
from kvserver.answering import LONG_BODY
from kvserver.errors import Refused
from kvserver.window import Window
from server.fakes import serving
from server.reading import BODIES
from server.rig import Rig, rig

COUNT = "/v1/messages/count_tokens"
KINDS = {"words": "some words ", "letters": "abcdefghijk", "no ASCII": "今天", "markers": "<think>"}


@pytest.fixture(scope="module")
def running() -> Iterator[Rig]:
    with rig(max_queue=99) as server:
        yield server


@pytest.fixture(scope="module")
def url(running: Rig) -> Iterator[str]:
    with serving(running.driver) as url:
        yield url


def body(path: str, text: str, **more: object) -> dict[str, object]:
    if "messages" in BODIES.get(path, {"messages": ()}):
        return {"messages": [{"role": "user", "content": text}], "max_tokens": 1} | more
    if "responses" in path:
        return {"input": text, "max_output_tokens": 1} | more
    return {"prompt": text, "max_tokens": 1} | more


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", BODIES)
def test_what_cannot_fit_is_refused_in_every_dialect(url: str, path: str, stream: bool, kind: str) -> None:
    text = KINDS[kind] * (2 * LONG_BODY // len(KINDS[kind].encode()))
    answer = httpx2.post(url + path, json=body(path, text, stream=stream), timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("prompt is too long: ")


def test_text_of_more_bytes_than_tokens_can_have_is_not_even_tokenised(
    running: Rig, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = running.driver.serving.tokenizer.longest
    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "encode_chat", None)
        answer = httpx2.post(f"{url}/v1/completions", json={"prompt": "a" * (4097 * longest + LONG_BODY)})
    assert answer.status_code == 400
    assert answer.json()["error"]["n_prompt_tokens"] > 4096


@pytest.mark.parametrize("path", [*BODIES, COUNT])
def test_nobody_waits_for_texts_that_are_being_tokenised(
    running: Rig, url: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not for more of them than there are threads for the rest."""
    begun, over = threading.Semaphore(0), threading.Event()

    def slow(_: object) -> int:
        begun.release()
        assert over.wait(60)
        return 1

    monkeypatch.setattr(running.driver, "count_tokens" if path == COUNT else "read_ahead", slow)
    long = body(path, " " * (LONG_BODY + 1) if path == COUNT else "a " * LONG_BODY)
    with ThreadPoolExecutor(40) as clients:
        waiting = [clients.submit(httpx2.post, url + path, json=long, timeout=120) for _ in range(40)]
        assert begun.acquire(timeout=60)
        try:
            for other in BODIES:
                assert httpx2.post(url + other, json=body(other, "2+2?"), timeout=30).status_code == 200
        finally:
            over.set()
        assert {answer.result().status_code for answer in waiting} == ({200} if path == COUNT else {400})


def test_the_thread_of_the_engine_finds_it_tokenised(running: Rig, url: str) -> None:
    """A body is long here by what the template does not show, so that the prompt fits."""
    serving, encoded = running.driver.serving, list[str]()
    encode = serving.tokenizer._encode_step

    def watched(step: bytes) -> object:
        encoded.append(threading.current_thread().name)
        return encode(step)

    serving.tokenizer._encode_step = watched  # type: ignore[assignment, method-assign]
    try:
        long = body("/v1/messages", "Read this.", metadata={"padding": "x" * LONG_BODY})
        assert httpx2.post(f"{url}/v1/messages", json=long, timeout=30).status_code == 200
    finally:
        serving.tokenizer._encode_step = encode  # type: ignore[method-assign]
    assert encoded[0].startswith("tokenising") and "engine" in encoded


def test_what_was_tokenised_ahead_is_not_tokenised_again() -> None:
    seen = list[bytes]()

    def encode(piece: bytes) -> list[int]:
        seen.append(piece)
        return [0] * len(piece)

    text = b"words and more words " * 9000
    window = Window(Tokenizer(encode, [b"aaaa"], {b"<": 1}), 1 << 20)
    window.read_ahead(b"<" + text)
    before = len(seen)
    assert before > 2
    assert len(window.fit(b"<" + text, start=0, cached=0)) == len(text) + 1
    assert len(seen) == before
    window.fit(b"<" + text, start=1000, cached=1000)  # from a checkpoint within it: the first step is another one
    assert len(seen) == before + 1


def test_a_prompt_may_fill_the_window_but_for_one_token() -> None:
    window = Window(Tokenizer(lambda piece: [0] * len(piece), [b"a"], {b"<": 1}), 100)
    assert len(window.fit(b"cached" + b"a" * 89, start=6, cached=10)) == 89
    with pytest.raises(Refused, match="100 tokens > 99 maximum"):
        window.fit(b"cached" + b"a" * 90, start=6, cached=10)
