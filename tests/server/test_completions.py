"""/v1/completions: PROMPT 5.2, and the official SDK's own types."""

from __future__ import annotations

import openai
from openai.types import Completion

from kvserver.wire import Logprob
from server.fakes import FakeBackend, serving, spoken
from server.reading import streamed, whole

PATH = "/v1/completions"
LOGPROBS = (Logprob(b"The", -0.5, ((b"The", -0.5), (b"A", -1.5))), Logprob(b" sea", -0.1, ()))


def test_a_whole_answer() -> None:
    answer = whole(PATH, spoken("", "The sea", logprobs=LOGPROBS), logprobs=2)
    Completion.model_validate(answer)
    assert list(answer) == ["id", "object", "created", "model", "choices", "usage"]
    assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
    assert answer["choices"] == [
        {
            "text": "The sea",
            "index": 0,
            "finish_reason": "stop",
            "logprobs": {
                "tokens": ["The", " sea"],
                "token_logprobs": [-0.5, -0.1],
                "top_logprobs": [{"The": -0.5, "A": -1.5}, {}],
                "text_offset": [0, 3],
            },
        }
    ]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 60, "cache_write_tokens": 40}


def test_a_stream_is_pieces_of_text_the_finish_usage_and_done() -> None:
    *chunks, done = streamed(PATH, spoken("", "The sea", finish="length"), stream_options={"include_usage": True})
    assert done.data == "[DONE]"
    Completion.model_validate(chunks[-2].data)
    choices = [chunk.data["choices"][0] for chunk in chunks[:-1]]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
        ("The", None),
        (" se", None),
        ("a", None),
        ("", "length"),
    ]
    assert chunks[-1].data["choices"] == [] and chunks[-1].data["usage"]["total_tokens"] == 107


def test_the_sdk_reads_both() -> None:
    with serving(FakeBackend(spoken("", "The sea"))) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
        assert client.completions.create(model="m", prompt="x").choices[0].text == "The sea"
        stream = client.completions.create(model="m", prompt="x", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "The sea"
