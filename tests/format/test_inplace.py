"""A change in place writes what it says and no byte more, and leaves a valid file at every instant."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from kvformat.checkpoint import Checkpoint
from kvformat.errors import KVError, Mismatch, NotWritten, Unreadable
from kvformat.inplace import refresh_tool_map, touch
from kvformat.toolmap import encode_tool_map
from strategies import Sample, patched, plain_file, samples

CALLS = [(b"call_1", b"<A>"), (b"call_2", b"<B>")]


@given(samples())
def test_touch_changes_hits_and_last_used_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, sample: Sample
) -> None:
    path = tmp_path_factory.getbasetemp() / "touched.kv"
    path.write_bytes(sample.data)
    header = touch(path, 1_800_000_000)
    hits = (sample.contents.header.hits + 1) % 2**32
    changes = (12, hits.to_bytes(4, "little")), (32, (1_800_000_000).to_bytes(8, "little"))
    assert path.read_bytes() == patched(sample.data, *changes)
    assert (header.hits, header.last_used) == (hits, 1_800_000_000)


def test_touch_writes_twelve_bytes(final: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final.write_bytes(plain_file(hits=2**32 - 1).data)
    written: list[tuple[int, int]] = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: written.append((at, len(data))) or real(fd, data, at))
    assert touch(final, 7).hits == 0
    assert written == [(12, 4), (32, 8)]


@pytest.fixture
def instants(final: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """The file after every system call that changes it; each write passes three bytes at most, as any write may."""
    seen: list[bytes] = []
    pwrite, ftruncate = os.pwrite, os.ftruncate

    def short_pwrite(fd: int, data: Any, offset: int) -> int:
        limit = 3 if offset >= len(plain_file().data) else len(data)
        done = pwrite(fd, bytes(data[:limit]), offset)
        seen.append(final.read_bytes())
        return done

    def seen_ftruncate(fd: int, size: int) -> None:
        ftruncate(fd, size)
        seen.append(final.read_bytes())

    monkeypatch.setattr(os, "pwrite", short_pwrite)
    monkeypatch.setattr(os, "ftruncate", seen_ftruncate)
    return seen


@pytest.mark.parametrize("before", [[], CALLS, [(b"longer", b"x" * 99)]])
@pytest.mark.parametrize("after", [[], CALLS])
def test_a_refresh_leaves_a_valid_file_at_every_instant(
    final: Path, instants: list[bytes], before: list[Any], after: list[Any]
) -> None:
    final.write_bytes(plain_file(tool_map=tuple(before)).data)
    refresh_tool_map(final, encode_tool_map(after), 77)
    other = final.with_name("instant.kv")
    for data in instants:
        other.write_bytes(data)
        with Checkpoint.open(other, (plain_file().shape,)) as checkpoint:
            assert checkpoint.trailer_problem is None
            assert list(checkpoint.tool_pairs()) in ([], before, after)
    with Checkpoint.open(final) as checkpoint:
        assert (list(checkpoint.tool_pairs()), checkpoint.leftover) == (after, 0)
        assert (checkpoint.header.last_used, checkpoint.header.hits) == (77, 0)
    assert len(instants) > 2


def test_the_new_map_is_on_disk_before_it_is_announced(final: Path, calls: list[str]) -> None:
    final.write_bytes(plain_file(tool_map=tuple(CALLS)).data)
    calls.clear()
    refresh_tool_map(final, encode_tool_map(CALLS), 1)
    clear, announce, used = "pwrite", "pwrite", "pwrite"
    assert calls == ["open", clear, "fsync", "ftruncate", "pwrite", "fsync", announce, used, "fsync"]


@pytest.mark.parametrize("flags", [0x02, 0x04])
def test_a_refresh_keeps_the_kind_of_the_key(final: Path, flags: int) -> None:
    final.write_bytes(plain_file(ext_flags=flags).data)
    refresh_tool_map(final, encode_tool_map(CALLS), 1)
    with Checkpoint.open(final) as checkpoint:
        assert checkpoint.header.ext_flags == flags | 0x01


@pytest.mark.parametrize("flags", [0x08, 0x10, 0x81])
def test_other_trailers_are_not_overwritten(final: Path, flags: int) -> None:
    data = plain_file(ext_flags=flags).data + b"theirs"
    final.write_bytes(data)
    with pytest.raises(Mismatch, match="other trailers"):
        refresh_tool_map(final, encode_tool_map(CALLS), 1)
    assert final.read_bytes() == data


def test_a_full_disk_during_a_refresh_is_our_error_and_a_valid_file(
    final: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final.write_bytes(plain_file(tool_map=tuple(CALLS)).data)
    pwrite = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset >= len(plain_file().data):
            raise OSError(errno.ENOSPC, "full")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NotWritten, match="free some space"):
        refresh_tool_map(final, encode_tool_map(CALLS), 1)
    with Checkpoint.open(final) as checkpoint:
        assert checkpoint.tools is None and checkpoint.leftover == 0


def test_what_is_gone_or_broken_is_not_touched(final: Path) -> None:
    for data in (b"", plain_file().data[:-1], plain_file(payload_abi=9).data):
        final.write_bytes(data)
        with pytest.raises(KVError):
            touch(final, 1)
        assert final.read_bytes() == data
    final.unlink()
    with pytest.raises(Unreadable, match="no such file"):
        touch(final, 1)
