"""The header of the golden model as its directory says, and no file, however broken, that costs more than a sentence."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprompt.errors import BadModelFile
from kvprompt.gguf_header import HEADER_LIMIT, read_gguf
from prompt.conftest import MODEL, golden


def test_metadata_of_the_golden_model():
    metadata = read_gguf(MODEL).metadata
    expected = golden("tiny-q2.metadata.json")
    arrays = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type"}
    assert metadata.keys() == expected.keys()
    assert {key: value for key, value in metadata.items() if key not in arrays} == {
        key: value for key, value in expected.items() if key not in arrays
    }
    vocabulary = golden("../models/vocab.json")
    assert [metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges", "token_type")] == [
        vocabulary[name] for name in ("tokens", "merges", "types")
    ]


def test_tensors_of_the_golden_model():
    tensors = read_gguf(MODEL).tensors
    found = [
        (t.name, gguf.GGMLQuantizationType(t.type).name, list(reversed(t.shape)), t.nbytes, t.offset)
        for t in tensors.values()
    ]
    assert found == [(t["name"], t["type"], t["dims"], t["bytes"], t["offset"]) for t in golden("tiny-q2.tensors.json")]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A GGUF with every kind of value, as gguf-py writes it."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "deepseek4")
    writer.add_array("a.strings", ["x", "città"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_float32("a.float", 0.5)
    writer.add_bool("a.bool", True)
    writer.add_tensor("one", np.ones((2, 32), dtype=np.float32))
    writer.add_tensor("two", np.ones((3,), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "broken.gguf"


def test_every_kind_of_value(small: bytes, scratch: Path):
    scratch.write_bytes(small)
    header = read_gguf(scratch)
    assert header.metadata["a.strings"] == ["x", "città"]
    assert header.metadata["a.numbers"] == [1, 2, 3]
    assert (header.metadata["a.float"], header.metadata["a.bool"]) == (0.5, True)
    assert header.tensors["one"].shape == (2, 32)
    one = header.tensors["one"]
    assert small[one.offset : one.offset + one.nbytes] == np.ones(64, dtype=np.float32).tobytes()


def test_every_truncation_is_a_sentence(small: bytes, scratch: Path):
    for length in range(len(small) - 32):
        scratch.write_bytes(small[:length])
        with pytest.raises(BadModelFile, match=r"broken\.gguf"):
            read_gguf(scratch)


@given(st.data())
def test_any_change_is_read_or_refused(small: bytes, scratch: Path, data: st.DataObject):
    broken = bytearray(small)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(small) - 9))
        new = data.draw(st.binary(min_size=1, max_size=8) | st.just(b"\xff" * 8))
        broken[at : at + len(new)] = new
    scratch.write_bytes(broken)
    try:
        header = read_gguf(scratch)
    except BadModelFile:
        return
    assert all(tensor.offset + tensor.nbytes <= len(broken) for tensor in header.tensors.values())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (struct.pack("<QQ", 0, 1 << 40), "entries"),
        (struct.pack("<QQ", 1 << 40, 0), "entries"),
        (struct.pack("<QQQ", 0, 1, 1 << 62), "announced"),
        (struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 4, 1 << 62), "announced"),
        (struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 9, 1), "type 9 is unknown"),
        (struct.pack("<QQQ1sI", 0, 1, 1, b"k", 99), "type 99 is unknown"),
        (struct.pack("<QQQ1sII", 1, 0, 1, b"t", 5, 0), "5 dimensions"),
    ],
)
def test_hostile_numbers(scratch: Path, body: bytes, problem: str):
    with scratch.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<I", 3) + body)
        file.truncate(HEADER_LIMIT * 4)
    with pytest.raises(BadModelFile, match=problem):
        read_gguf(scratch)


def test_what_is_no_gguf(scratch: Path):
    scratch.write_bytes(b"PK\x03\x04" * 10)
    with pytest.raises(BadModelFile, match="does not start with GGUF"):
        read_gguf(scratch)
    scratch.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(64))
    with pytest.raises(BadModelFile, match="little-endian"):
        read_gguf(scratch)
