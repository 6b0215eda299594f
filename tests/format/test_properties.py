"""What holds for every file: both directions of the round trip, and that no bytes at all get the better of us."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvformat import layout
from kvformat.checkpoint import Checkpoint
from kvformat.errors import Ambiguous, KVError
from kvformat.header import FRONT_BYTES, Header
from kvformat.prefix import key_of_name, prefix_digests, text_key
from kvformat.scan import Kind, examine
from kvformat.shapes import Shape
from kvformat.state import empty_state
from kvformat.toolmap import encode_tool_map
from kvformat.writer import Contents
from kvtools.inspecting import inspect_file
from kvtools.verifying import verify
from strategies import Sample, built, mutated, plain_state, samples


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("properties")


def put(folder: Path, data: bytes, name: str = "any.kv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def flat(contents: Contents) -> tuple[Any, ...]:
    """Contents with every buffer as plain bytes, so that two of them can be compared."""
    payload = contents.payload
    if payload is None:
        return contents.header, bytes(contents.text), None, bytes(contents.trailers)
    layers = [[(name, array.shape, array.tobytes()) for name, array in layer.arrays()] for layer in payload.layers]
    front = (payload.words, bytes(payload.token_ids), bytes(payload.logits), payload.n_comp, payload.n_index_comp)
    return (
        contents.header, bytes(contents.text), front, payload.ratios, layers, bytes(payload.body), bytes(contents.trailers)
    )  # fmt: skip


# ---- round trips


@given(samples())
def test_build_of_parse_is_the_same_file(folder: Path, sample: Sample) -> None:
    path = put(folder, sample.data)
    assert sample.contents.nbytes == len(sample.data)
    for shapes in ((), (sample.shape,)):
        with Checkpoint.open(path, shapes) as checkpoint:
            assert built(Contents.of(checkpoint)) == sample.data


@given(samples())
def test_parse_of_build_is_the_same_contents(folder: Path, sample: Sample) -> None:
    with Checkpoint.open(put(folder, sample.data), (sample.shape,)) as checkpoint:
        assert flat(Contents.of(checkpoint)) == flat(sample.contents)


@given(samples(payload=True))
def test_arrays_are_read_as_they_were_written(folder: Path, sample: Sample) -> None:
    payload = sample.contents.payload
    assert payload is not None
    with Checkpoint.open(put(folder, sample.data), (sample.shape,)) as checkpoint:
        state = empty_state(sample.shape, payload.words.tokens, payload.words.ctx)
        checkpoint.read_into(state)
        views = checkpoint.views()
        for read in (state, views):
            assert (read.tokens.tobytes(), read.logits.tobytes()) == (bytes(payload.token_ids), bytes(payload.logits))
            for layer, written in zip(read.layers, payload.layers, strict=True):
                assert [(n, a.tobytes()) for n, a in layer.arrays()] == [(n, a.tobytes()) for n, a in written.arrays()]
        assert (views.ctx, views.prefill_chunk) == (payload.words.ctx, payload.words.prefill_chunk)
        assert checkpoint.token_ids().tolist() == state.tokens.tolist()


@given(samples(payload=True))
def test_a_pattern_is_inferred_right_or_not_at_all(folder: Path, sample: Sample) -> None:
    with Checkpoint.open(put(folder, sample.data), ()) as checkpoint:
        try:
            assert checkpoint.shape.ratios == sample.shape.ratios
        except Ambiguous:
            assert checkpoint.header.tokens < 128
        assert sample.shape.payload_bytes(checkpoint.header.tokens) == checkpoint.header.payload_bytes


@given(st.binary(min_size=FRONT_BYTES, max_size=FRONT_BYTES))
def test_any_header_encodes_to_the_bytes_it_came_from(front: bytes) -> None:
    header = Header.decode(front)
    assert header.encode() == front
    declared = layout.HEADER.parse(front)
    assert {name: getattr(header, name) for name in declared if name != "_io"} == {
        name: value for name, value in declared.items() if name != "_io"
    }


@given(st.binary(max_size=60), st.lists(st.integers(-3, 70)))
def test_one_pass_gives_the_key_of_every_prefix(prompt: bytes, lengths: list[int]) -> None:
    wanted = {n for n in lengths if 0 <= n <= len(prompt)}
    assert prefix_digests(prompt, lengths) == {n: bytes.fromhex(text_key(prompt[:n])) for n in wanted}


@given(samples())
def test_scan_knows_a_valid_file_by_its_front(folder: Path, sample: Sample) -> None:
    entry = examine(str(folder), put(folder, sample.data, sample.name).name)
    (folder / sample.name).unlink()
    assert entry is not None and entry.kind is (Kind.GOOD if sample.contents.payload else Kind.STRIPPED)
    assert entry.header == sample.contents.header
    assert entry.key == key_of_name(sample.name) == text_key(bytes(sample.contents.text))


# ---- any bytes


def peak_of(action: Callable[[], object]) -> int:
    """Bytes at the peak above what was there before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def use_everything(path: Path, shapes: tuple[Shape, ...]) -> None:
    """Whatever can be asked of a file; only our own errors may come out."""
    try:
        with Checkpoint.open(path, shapes) as checkpoint:
            checkpoint.text()
            list(checkpoint.tool_pairs())
            assert built(Contents.of(checkpoint)) == path.read_bytes()
            checkpoint.token_ids()
            checkpoint.views()
    except KVError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    verify(path)
    inspect_file(path)
    examine(str(path.parent), path.name)


SMALL = Shape("small", (0, 4, 128), 3, 2, 16, 8)


@given(st.binary(max_size=400) | st.binary(max_size=300).map(lambda tail: b"KVC\1\2\1\0\0" + tail) | mutated())
@example(b"")
@example(b"KVC")
@example(b"KVC\1\2\1\1\0" + bytes([1] + [0] * 43))
def test_any_bytes_raise_only_our_errors_in_little_memory(folder: Path, data: bytes) -> None:
    path = put(folder, data)
    assert peak_of(lambda: use_everything(path, (SMALL,))) < 64 << 20


def hostile(**fields: int) -> bytes:
    """100 bytes that announce the most that fits into one field, with a tool map and a title promised behind."""
    plain = {"tokens": 1, "payload_bytes": 0, "text_bytes": 1} | fields
    header = Header(
        b"KVC", 1, 2, 1, 9, 0, plain["tokens"], 0, 2**32 - 1, 2, bytes(3), 1, 1, plain["payload_bytes"], plain["text_bytes"]
    )  # fmt: skip
    return (header.encode() + encode_tool_map([(b"i", b"d")])).ljust(100, b"\xff")


def words(*changes: tuple[int, int]) -> bytes:
    """100 bytes with no text, 48 bytes of payload more than there are, and 12 words that want everything."""
    values = [int.from_bytes(b"DSV4", "little"), 2, 2**32 - 1, 1, 8192, 128, 2**30, 1, 1, 1, 1, 1]
    for index, value in changes:
        values[index] = value
    front = hostile(payload_bytes=48, text_bytes=0)[:FRONT_BYTES]
    return front + b"".join(value.to_bytes(4, "little") for value in values)


@pytest.mark.parametrize(
    "data",
    [
        hostile(text_bytes=2**32 - 1),
        hostile(payload_bytes=2**64 - 1),
        hostile(payload_bytes=2**40),
        hostile(tokens=2**32 - 1),
        hostile(),
        hostile()[:53] + b"KTM\1" + b"\x80\x1a\x06\0" + b"\0\1\0\0" + b"\0\0\0\x20" + bytes(31),
        hostile()[:53] + b"KTM\1" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + bytes(35),
        words(),
        words((7, 2**32 - 1)),
        words((8, 2**32 - 1)),
        words((11, 2**32 - 1)),
    ],
)
def test_a_hostile_file_of_100_bytes_costs_next_to_nothing(folder: Path, data: bytes) -> None:
    assert len(data) == 100
    path = put(folder, data)
    use_everything(path, (SMALL,))  # imports are not the file's doing
    assert peak_of(lambda: use_everything(path, (SMALL,))) < 4 << 20


def test_many_layers_without_a_count_are_searched_within_bounds(folder: Path) -> None:
    """Fewer than four tokens leave every ratio open on every layer: the worst case of the search."""
    state = plain_state(Shape("deep", (0, 4, 128) * 85, 1, 1, 1, 1), tokens=1)
    contents = Contents.from_state(state, b"x", reason="cold", quant_bits=2, now=1)
    path = put(folder, built(contents))
    assert peak_of(lambda: use_everything(path, ())) < 64 << 20
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.payload is not None and checkpoint.payload.shape is None
