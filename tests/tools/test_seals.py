"""`kvtool verify --seal`: a checksum over what never changes, and what it keeps through and shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvformat.checkpoint import Checkpoint
from kvformat.inplace import refresh_tool_map, touch
from kvformat.sidecar import read_sidecar, sidecar_path, update_sidecar
from kvformat.toolmap import encode_tool_map
from kvtools.findings import Verdict
from kvtools.judging import Level
from kvtools.sweeping import BLOCK
from strategies import patched
from tools_kit import SMALL, codes, kvtool, only, save


def sealed(path: Path) -> Path:
    assert only(path, seal=True).sealed
    return path


def test_a_seal_changes_no_byte_of_the_file_and_shows_every_flip_behind_it(tmp_path: Path) -> None:
    path = save(tmp_path, b"text", tool_map=[(b"call_1", b"text")])
    before = path.read_bytes()
    sealed(path)
    assert path.read_bytes() == before
    assert only(path).verdict is Verdict.OK
    with Checkpoint.open(path) as checkpoint:
        end = checkpoint.header.payload_end
    changeable = {6, *range(12, 16), *range(32, 40)}
    for at in [*range(52), *range(52, end, 1501), end - 1]:
        path.write_bytes(patched(before, (at, bytes([before[at] ^ 0x10]))))
        assert (only(path).verdict in (Verdict.OK, Verdict.WARNING)) == (at in changeable), at


def test_a_touch_a_pin_and_a_new_tool_map_keep_the_seal_and_every_other_byte(tmp_path: Path) -> None:
    path = sealed(save(tmp_path, b"text"))
    before = bytearray(path.read_bytes())
    assert kvtool("pin", path).code == 0
    touch(path, 1_900_000_000)
    after = path.read_bytes()
    for start, end in ((12, 16), (32, 40)):
        before[start:end] = after[start:end]
    assert bytes(before) == after
    assert only(path).verdict is Verdict.OK
    refresh_tool_map(path, encode_tool_map([(b"call_1", b"text")]), 1_900_000_001)
    assert only(path).verdict is Verdict.OK
    assert read_sidecar(path).pin and read_sidecar(path).checksum.startswith("xxh3-128:")


def test_the_checksum_is_the_documented_one(tmp_path: Path) -> None:
    import xxhash

    path = sealed(save(tmp_path, b"text", 9000, shape=replace(SMALL, head_dim=512), ctx=9001))
    data = bytearray(path.read_bytes())
    for at in (6, *range(12, 16), *range(32, 40)):
        data[at] = 0
    payload = 52 + len(b"text")
    parts = [data[:payload], *(data[at : at + BLOCK] for at in range(payload, len(data), BLOCK))]
    assert len(parts) > 2
    digests = b"".join(xxhash.xxh3_128(bytes(part)).digest() for part in parts)
    assert read_sidecar(path).checksum == f"xxh3-128:{xxhash.xxh3_128(digests).hexdigest()}"


def test_what_is_damaged_is_not_sealed_and_a_broken_seal_is_not_renewed(tmp_path: Path) -> None:
    path = sealed(save(tmp_path, b"text"))
    data = path.read_bytes()
    path.write_bytes(patched(data, (len(data) - 4, b"\1\2\3\4")))
    report = only(path, Level.QUICK, seal=True)
    assert (report.verdict, report.sealed) == (Verdict.DAMAGED, False)


def test_a_sidecar_that_cannot_be_read_is_a_warning_and_stays(tmp_path: Path) -> None:
    path = save(tmp_path, b"text")
    sidecar_path(path).write_bytes(b"{")
    report = only(path, seal=True)
    assert codes(report) == ["sidecar", "not-sealed"] and sidecar_path(path).read_bytes() == b"{"
    update = save(tmp_path, b"other")
    update_sidecar(update, checksum="sha256:00")
    assert codes(only(update)) == ["sidecar"]
