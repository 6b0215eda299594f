"""Real clients against a real kvserve process: the official SDKs, streamed and not, the llm command, schemathesis."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from e2e.process import Server

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}
QUESTION = [{"role": "user", "content": "How is the weather?"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    with Server(
        folder / "log", "-c", "1024", "--kv-disk-dir", str(folder / "kv"), "--kv-cache-min-tokens", "16"
    ) as server:
        yield server.url


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_openai(url: str, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": TOOL}}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="local", max_retries=0) as client:
        assert client.models.list().data
        chat = client.chat.completions.create(model="m", messages=QUESTION, tools=tools, max_tokens=6, stream=stream)  # type: ignore[call-overload]
        assert chat.usage.completion_tokens <= 6 if not stream else any(event.choices for event in chat)
        text = client.completions.create(model="m", prompt="Go on", max_tokens=6, stream=stream)
        assert text.usage is not None if not stream else list(text)
        answer = client.responses.create(model="m", input="Go on", max_output_tokens=16, stream=stream)
        assert (
            answer.usage.output_tokens <= 16
            if not stream
            else [*answer][-1].type in ("response.completed", "response.incomplete")
        )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_anthropic(url: str, stream: bool) -> None:
    tools = [{"name": "get_weather", "input_schema": TOOL}]
    with anthropic.Anthropic(base_url=url, api_key="local", max_retries=0) as client:
        counted = client.messages.count_tokens(model="m", messages=QUESTION, tools=tools)  # type: ignore[arg-type]
        if stream:
            with client.messages.stream(model="m", messages=QUESTION, tools=tools, max_tokens=6) as events:  # type: ignore[arg-type]
                message = events.get_final_message()
        else:
            message = client.messages.create(model="m", messages=QUESTION, tools=tools, max_tokens=6)  # type: ignore[call-overload]
        usage = message.usage
        assert counted.input_tokens == usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_llm(url: str, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(f"- model_id: ds4\n  model_name: m\n  api_base: {url}/v1\n")
    command = [
        sys.executable,
        "-m",
        "llm",
        "-m",
        "ds4",
        "--key",
        "local",
        "--no-log",
        "-o",
        "max_tokens",
        "6",
        "say hello",
    ]
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}
    for mode in ([], ["--no-stream"]):
        ran = subprocess.run([*command, *mode], env=environment, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr


def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """In 48 tokens of context answers are short and long prompts refused; whether valid ones pass is asked in test_openapi."""
    with Server(tmp_path / "log", "-c", "48") as server:
        command = ["run", f"{server.url}/openapi.json", "--max-examples", "5", "--phases", "fuzzing", "--seed", "1"]
        command += ["--no-color", "--exclude-checks", "positive_data_acceptance"]
        ran = subprocess.run(
            [Path(sys.executable).parent / "st", *command], capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
    assert ran.returncode == 0, ran.stdout[-4000:]
