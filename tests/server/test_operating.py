"""The endpoints that need no model: signs of life, health and metrics."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from server.fakes import FakeBackend, serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(FakeBackend()) as url:
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
    assert answer.status_code == 503 and answer.json()["status"] == "loading"


def test_health(url: str) -> None:
    answer = httpx2.get(f"{url}/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "queued": 4, "sessions": 1}


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
