"""The process: how it begins, refuses to begin, and ends by signals, seen from outside."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from kvserver.main import main, open_model, serve
from kvserver.settings import Settings
from server.fakes import until
from server.reading import events

TESTS = Path(__file__).parents[1]


@contextmanager
def kvserve(script: str) -> Iterator[subprocess.Popen[str]]:
    """A server process of its own, ended at the latest with the block."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "server.run_fake", script],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def url_of(process: subprocess.Popen[str]) -> str:
    """Where it listens, once it is ready."""
    assert process.stderr
    found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", process.stderr.readline())
    assert found
    assert process.stderr.readline() == "ready: a script; 3 files, 12 of 4096 MiB, the oldest of yesterday\n"
    assert until(lambda: httpx2.get(f"{found[1]}/health").status_code == 200)
    return found[1]


def test_sigterm_ends_streams_properly_saves_and_is_not_shaken_by_a_second_one() -> None:
    with kvserve("hello") as process, httpx2.Client() as idle:
        url = url_of(process)
        assert idle.head(url).headers.get("alt-svc") is None
        with httpx2.stream("POST", f"{url}/v1/chat/completions", json={"messages": [], "stream": True}) as answer:
            lines = answer.iter_lines()
            assert "role" in next(lines)
            process.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert events(rest.lstrip("\n") + "\n")[-1].data == "[DONE]"
        assert process.stdout and process.stdout.readline() == "saving\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=20) == ("saved\n", "")
        assert process.returncode == 0


def test_a_second_ctrl_c_stops_at_once() -> None:
    with kvserve("hello") as process:
        url_of(process)
        process.send_signal(signal.SIGINT)
        assert process.stdout and process.stdout.readline() == "saving\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=20) == ("", "")
        assert process.returncode == 130


def test_a_model_that_cannot_be_loaded_is_one_sentence() -> None:
    with kvserve("broken") as process:
        _, told = process.communicate(timeout=20)
        assert told.splitlines()[1:] == ["the model cannot be loaded: this is no GGUF file"]
        assert process.returncode == 1


def test_a_port_in_use_is_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve(Settings(port=port), open_model) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in caplog.text and "--port" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kv-cache-policy", "x"], "'x' is not one of 'ours', 'upstream', 'lru'"),
    ],
)
def test_what_it_refuses_to_begin_with_is_one_sentence(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kvserve", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("kvserve: ") and told in shown and shown.count("\n") == 1
