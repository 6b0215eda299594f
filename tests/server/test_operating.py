"""The endpoints that need no model: signs of life, health and metrics."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import httpx2
import openai
import pytest
from anthropic.types import ModelInfo

from kvserver.openapi import document
from kvserver.settings import Settings
from server.fakes import FakeBackend, serving

CTX = 9000
NAMES = ["deepseek-v4-flash", "deepseek-chat", "deepseek-reasoner"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FakeBackend(), Settings(ctx=CTX)) as url:
        yield url


def test_head_of_the_root_is_answered(url: str) -> None:
    answer = httpx2.head(url)
    assert answer.status_code == 200 and answer.content == b""


def test_options_is_answered_everywhere(url: str) -> None:
    for path in ("/", "/v1/messages", "/nowhere"):
        assert httpx2.options(url + path).status_code == 204


def test_health_is_503_until_the_model_is_there() -> None:
    with serving(None) as url:
        answer = httpx2.get(f"{url}/health")
    assert answer.status_code == 503
    assert answer.json() == {"status": "loading", "queued": 0, "sessions": 0, "context_length": Settings().ctx}


def test_health(url: str) -> None:
    answer = httpx2.get(f"{url}/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "queued": 4, "sessions": 1, "context_length": CTX}


@pytest.mark.parametrize("loaded", [True, False])
def test_models_tell_what_a_client_must_know(loaded: bool) -> None:
    with serving(FakeBackend() if loaded else None, Settings(ctx=CTX)) as url:
        page = httpx2.get(f"{url}/v1/models").json()
        alone = [httpx2.get(f"{url}/v1/models/{entry['id']}").json() for entry in page["data"]]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
            parsed = [entry.model_dump() for entry in client.models.list()]
        with anthropic.Anthropic(base_url=url, api_key="-") as client:
            infos = [ModelInfo.model_validate(entry.model_dump()) for entry in client.models.list()]
    assert page["data"] == alone
    assert [entry["id"] for entry in alone] == ["tiny"] * loaded + NAMES
    for entry, seen, info in zip(alone, parsed, infos, strict=True):
        assert entry["name"] == ("tiny" if loaded else entry["id"])
        assert entry["context_length"] == info.max_input_tokens == info.max_tokens == CTX
        assert entry["top_provider"] == {
            "context_length": CTX,
            "max_completion_tokens": CTX,
            "is_moderated": False,
        }
        assert seen["top_provider"] == entry["top_provider"] and info.lifecycle == "active"


def test_supported_parameters_are_ds4_servers_and_each_is_read(url: str) -> None:
    told = httpx2.get(f"{url}/v1/models").json()["data"][0]["supported_parameters"]
    ds4 = "tools tool_choice max_tokens temperature top_p top_k min_p stop seed stream reasoning_effort"
    assert told == [*ds4.split(), "logprobs", "top_logprobs"]
    assert set(told) <= set(document()["components"]["schemas"]["Chat"]["properties"])


def test_metrics(url: str) -> None:
    answer = httpx2.get(f"{url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert answer.text == (
        "# HELP ds4kv_state 1 for the state that the server is in.\n"
        "# TYPE ds4kv_state gauge\n"
        'ds4kv_state{state="loading"} 0\n'
        'ds4kv_state{state="ready"} 1\n'
        'ds4kv_state{state="stopping"} 0\n'
        "# HELP ds4kv_queued Requests that wait.\n"
        "# TYPE ds4kv_queued gauge\n"
        "ds4kv_queued 4\n"
        "# HELP ds4kv_sessions Live conversations.\n"
        "# TYPE ds4kv_sessions gauge\n"
        "ds4kv_sessions 1\n"
        "# HELP ds4kv_requests_total Requests by source.\n"
        "# TYPE ds4kv_requests_total counter\n"
        'ds4kv_requests_total{source="live"} 2\n'
        'ds4kv_requests_total{source="disk"} 1\n'
        'ds4kv_requests_total{source="none"} 3\n'
    )
