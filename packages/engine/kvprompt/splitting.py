"""How ds4 cuts text into words before it merges: one pattern over letters that stand for bytes.

Its classes are ASCII; every byte above counts as a letter, and a lead byte takes the following bytes of its character
along, whatever they are. Chinese characters and kana are cut off only where a word begins with them.
"""

from __future__ import annotations

from collections.abc import Iterable

_VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _alphabet() -> tuple[str, ...]:
    hidden = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in _VISIBLE else next(hidden)) for byte in range(256))


ALPHABET = _alphabet()
"""The letter for each byte in a byte-level vocabulary: its own where it can be seen, else one from U+0100 on."""


def _one_of(*groups: Iterable[int], none: bool = False) -> str:
    letters = "".join(f"\\x{{{ord(ALPHABET[byte]):X}}}" for group in groups for byte in group)
    return f"[{'^' if none else ''}{letters}]"


_SPACES, _NEWLINES = b" \t\n\v\f\r", b"\r\n"
_DIGITS = range(0x30, 0x3A)
_ALPHAS = (*range(0x41, 0x5B), *range(0x61, 0x7B))
_PUNCTUATION = tuple(byte for byte in range(0x21, 0x7F) if byte not in _DIGITS and byte not in _ALPHAS)
_HIGH = range(0x80, 0x100)
_TRAIL = _one_of(range(0x80, 0xC0))


def _pattern() -> str:
    alpha, punctuation = _one_of(_ALPHAS), _one_of(_PUNCTUATION)
    space, newline = _one_of(_SPACES), _one_of(_NEWLINES)
    letter = (
        f"(?:{alpha}|{_one_of(range(0xC0, 0xE0))}.|{_one_of(range(0xE0, 0xF0))}..|{_one_of(range(0xF0, 0xF8))}..."
        f"|{_one_of(_HIGH)})"
    )
    # U+3040..30FF, U+4E00..9FA5, as UTF-8
    chinese_or_kana = (
        f"(?:{_one_of([0xE3])}{_one_of(range(0x81, 0x84))}{_TRAIL}|{_one_of([0xE4])}{_one_of(range(0xB8, 0xC0))}{_TRAIL}"
        f"|{_one_of(range(0xE5, 0xE9))}{_TRAIL}{_TRAIL}|{_one_of([0xE9])}{_one_of(range(0x80, 0xBE))}{_TRAIL}"
        f"|{_one_of([0xE9])}{_one_of([0xBE])}{_one_of(range(0x80, 0xA6))})"
    )
    neither_word_nor_newline = _one_of(_NEWLINES, _PUNCTUATION, _DIGITS, _ALPHAS, _HIGH, none=True)
    return "|".join(
        (
            f"{_one_of(_DIGITS)}{{1,3}}",
            f"{chinese_or_kana}+",
            f"{punctuation}{alpha}+",
            f"{neither_word_nor_newline}?{letter}+",
            f"{_one_of(b' ')}?{punctuation}+{newline}*",
            f"{space}*{newline}+",
            f"{space}+(?!{_one_of(_SPACES, none=True)})",
            f"{space}+",
            ".",
        )
    )


DS4_PATTERN = _pattern()
"""For the Split pre-tokenizer, on text in which every byte is its letter of ALPHABET."""
