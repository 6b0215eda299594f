"""Why a file is not what a prompt starts with: the first byte that differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvformat import layout
from kvformat.header import Header

CONTEXT = 20  # bytes shown on each side of a difference


@dataclass(frozen=True, slots=True)
class NearMiss:
    """The file that shares the longest start with a prompt, and the first byte that differs with 20 bytes on each side."""

    path: Path
    tokens: int
    byte: int
    in_prompt: bytes
    in_file: bytes


def compare(path: Path, header: Header, prompt: bytes) -> NearMiss | None:
    """Where this file's text and the prompt part; None if the text is a prefix of it or cannot be read."""
    text = start_of_text(path, header, len(prompt) + CONTEXT)
    if text is None:
        return None
    at = common_prefix(text, prompt)
    if at == header.text_bytes:
        return None
    around = slice(max(0, at - CONTEXT), at + CONTEXT)
    return NearMiss(path, header.tokens, at, prompt[around], text[around])


def start_of_text(path: Path, header: Header, count: int) -> bytes | None:
    """The first `count` bytes of a file's text, or all of a shorter one; None if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(layout.TEXT_OFFSET)
            return file.read(min(header.text_bytes, count))
    except OSError:
        return None


def common_prefix(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix, by halving: comparing slices is a memcmp."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
