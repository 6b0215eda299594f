"""What the server writes holds prompts: nobody else may read it, whatever the umask and whatever was there before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvserver import trace
from server.rig import rig

LONG = "the quick brown fox jumps over the lazy dog " * 20
OTHERS = 0o077


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    """The widest umask there is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_that_the_server_writes_is_private(tmp_path: Path) -> None:
    with rig(tmp_path / "kv", trace=tmp_path / "trace") as running:
        running.chat({"role": "user", "content": LONG})
        running.chat({"role": "user", "content": f"another {LONG}"})
    written = list(tmp_path.rglob("*"))
    assert {path.suffix for path in written} >= {".kv", ".lock", ""}
    assert LONG.encode() in (tmp_path / "trace").read_bytes()
    assert {path.name: oct(mode(path)) for path in written if mode(path) & OTHERS} == {}


@pytest.mark.parametrize("before", [0o644, 0o666, 0o640, 0o604])
def test_a_trace_that_was_open_to_others_is_closed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"earlier\n")
    path.chmod(before)
    with trace.open_privately(path) as file:
        file.write(b"more\n")
    assert path.read_bytes() == b"earlier\nmore\n" and mode(path) == 0o600
    assert f"open to others (mode {before:o})" in caplog.text and "yours alone now" in caplog.text


def test_a_trace_that_cannot_be_closed_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    path = tmp_path / "trace"
    path.touch()
    monkeypatch.setattr(os, "fchmod", refuse)
    trace.open_privately(path).close()
    assert "it still is: [Errno 1] Operation not permitted" in caplog.text


def test_a_private_trace_and_no_file_at_all_are_left_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace"
    path.touch(0o600)
    for place in (path, Path("/dev/null")):
        before = mode(place)
        trace.open_privately(place).close()
        assert mode(place) == before
    assert caplog.text == ""
