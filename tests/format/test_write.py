"""Nothing is half-written under its final name, and what was written is what is read, in both generations."""

from __future__ import annotations

import errno
import os
import stat
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvformat import durable
from kvformat.checkpoint import Checkpoint
from kvformat.errors import Mismatch, NotWritten
from kvformat.policy import Reason
from kvformat.state import empty_state
from kvformat.writer import Contents, write
from strategies import plain_file, plain_state

OLD = b"what stood there before"  # by the fixture `final`
CALLS = [(b"call_1", b"<A>"), (b"call_2", b"<B>")]


def fail_with(code: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


# ---- a whole file


def test_room_then_bytes_then_sync_then_name_then_sync_of_the_directory(final: Path, calls: list[str]) -> None:
    write(final, plain_file().contents)
    assert calls == ["open", "posix_fallocate", "fsync", "replace", "open", "fsync directory"]
    assert final.read_bytes() == plain_file().data
    assert [path.name for path in final.parent.iterdir()] == [final.name]


def test_bytes_are_complete_when_they_are_synced(final: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    write(final, plain_file().contents)
    assert sizes[0] == len(plain_file().data)


def test_without_durable_nothing_is_synced(final: Path, calls: list[str]) -> None:
    write(final, plain_file().contents, durable=False)
    assert not [call for call in calls if call.startswith("fsync")]
    assert final.read_bytes() == plain_file().data


def test_only_the_owner_may_read_it(final: Path) -> None:
    write(final, plain_file().contents)
    assert stat.S_IMODE(final.stat().st_mode) == 0o600


def test_the_temp_file_stands_beside_and_names_its_writer(tmp_path: Path) -> None:
    name = durable.temp_name(tmp_path / "x.kv")
    assert name.parent == tmp_path
    assert name.name.startswith(f"x.kv.tmp.{os.getpid()}.")
    assert name != durable.temp_name(tmp_path / "x.kv")


@pytest.mark.parametrize(
    ("broken", "code"),
    [("posix_fallocate", errno.ENOSPC), ("fsync", errno.ENOSPC), ("fsync", errno.EIO), ("open", errno.EROFS)],
)
def test_a_refusal_of_the_system_leaves_the_old_file(
    final: Path, monkeypatch: pytest.MonkeyPatch, broken: str, code: int
) -> None:
    monkeypatch.setattr(os, broken, fail_with(code), raising=False)
    with pytest.raises(NotWritten) as caught:
        write(final, plain_file().contents)
    monkeypatch.undo()
    assert final.read_bytes() == OLD
    assert [path.name for path in final.parent.iterdir()] == [final.name]
    assert isinstance(caught.value.__cause__, OSError) and caught.value.__cause__.errno == code
    assert ("free some space" in str(caught.value)) is (code == errno.ENOSPC)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), RuntimeError("bug")])
def test_an_error_halfway_leaves_the_old_file_and_no_temp(final: Path, error: BaseException) -> None:
    def half(file: Any) -> None:
        file.write(b"half of it")
        raise error

    with pytest.raises(NotWritten if isinstance(error, OSError) else type(error)):
        durable.replace_durably(final, 100, half)
    assert final.read_bytes() == OLD
    assert [path.name for path in final.parent.iterdir()] == [final.name]


def test_a_system_without_posix_fallocate_still_writes(final: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    write(final, plain_file().contents)
    assert final.read_bytes() == plain_file().data


def test_a_file_system_that_cannot_reserve_room_still_writes(final: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", fail_with(errno.EOPNOTSUPP), raising=False)
    write(final, plain_file().contents)
    assert final.read_bytes() == plain_file().data


def test_a_file_system_that_cannot_sync_a_directory_still_writes(final: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def files_only(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no such thing here")
        real(fd)

    monkeypatch.setattr(os, "fsync", files_only)
    write(final, plain_file().contents)
    assert final.read_bytes() == plain_file().data


@pytest.mark.parametrize("supported", [True, False])
def test_macos_is_asked_for_its_full_sync(final: Path, monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    asked: list[int] = []

    def control(fd: int, command: int) -> None:
        asked.append(command)
        if not supported:
            raise OSError(errno.ENOTSUP, "not on this file system")

    plain: list[int] = []
    monkeypatch.setattr(durable, "fcntl", types.SimpleNamespace(F_FULLFSYNC=51, fcntl=control))
    monkeypatch.setattr(os, "fsync", plain.append)
    write(final, plain_file().contents)
    assert asked == [51, 51]
    assert len(plain) == (0 if supported else 2)


# ---- what is written


@pytest.mark.parametrize("generation", [0, 2])
def test_what_is_written_is_read_in_both_generations(final: Path, generation: int) -> None:
    state = plain_state(tokens=300, ctx=3000)
    contents = Contents.from_state(
        state, b"text", reason="evict", quant_bits=4, now=9, generation=generation, tool_map=CALLS
    )
    write(final, contents)
    with Checkpoint.open(final, (state.shape,)) as checkpoint:
        read = empty_state(state.shape, 300, 3000)
        checkpoint.read_into(read)
        for found in (read, checkpoint.views()):
            for (name, ours), (_, theirs) in zip(state.arrays(), found.arrays(), strict=True):
                assert ours.tobytes() == theirs.tobytes(), name
        header, words = checkpoint.header, checkpoint.payload and checkpoint.payload.words
        assert words is not None
        assert (header.payload_abi, words.version) == (generation, 1 if generation == 0 else 2)
        assert (header.reason, header.quant_bits, header.created, header.last_used) == (Reason.EVICT, 4, 9, 9)
        assert list(checkpoint.tool_pairs()) == CALLS


@pytest.mark.parametrize(
    ("generation", "ctx", "chunk"), [(0, 1024, 1024), (0, 4096, 2048), (2, 1024, 1024), (2, 8192, 4096)]
)
def test_words_are_those_of_the_generation(generation: int, ctx: int, chunk: int) -> None:
    contents = Contents.from_state(
        plain_state(ctx=ctx), b"text", reason="cold", quant_bits=2, now=1, generation=generation
    )
    assert contents.payload is not None
    words = contents.payload.words
    assert (words.prefill_chunk, words.raw_cap, words.raw_window, words.comp_cap) == (chunk, 8, 8, ctx // 4 + 2)
    assert (words.ctx, words.tokens, words.raw_live) == (ctx, 130, 8)


def test_a_context_below_the_window_is_the_window(final: Path) -> None:
    state = plain_state(tokens=5, ctx=6)
    write(final, Contents.from_state(state, b"text", reason="cold", quant_bits=2, now=1))
    with Checkpoint.open(final, (state.shape,)) as checkpoint:
        words = checkpoint.payload and checkpoint.payload.words
        assert words and (words.raw_window, words.raw_cap, words.raw_live) == (6, 6, 5)
        assert checkpoint.shape is state.shape


def test_an_empty_key_and_a_full_context_are_refused() -> None:
    with pytest.raises(Mismatch, match="match every prompt"):
        Contents.from_state(plain_state(), b"", reason="cold", quant_bits=2, now=1)
    with pytest.raises(Mismatch, match="fewer tokens than its context"):
        Contents.from_state(plain_state(tokens=130, ctx=130), b"x", reason="cold", quant_bits=2, now=1)


def test_buffers_of_another_shape_are_refused(final: Path) -> None:
    write(final, plain_file().contents)
    with Checkpoint.open(final, (plain_file().shape,)) as checkpoint:
        with pytest.raises(Mismatch, match="tokens does not fit"):
            checkpoint.read_into(empty_state(plain_file().shape, 129, 512))
        state = plain_state()
        state.layers[0].raw[:] = np.float32(0)
        checkpoint.read_into(state)
        assert state.layers[0].raw.tobytes() == checkpoint.views().layers[0].raw.tobytes()
