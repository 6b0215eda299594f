"""Keys: a checkpoint is named by the SHA1 of its text; a prompt can start from any file that one of its prefixes names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

_NAME = re.compile(r"[0-9a-fA-F]{40}\.kv")


def text_key(text: bytes) -> str:
    """The 40 lower-case hex digits that name the checkpoint of this text."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()


def key_of_name(name: str) -> str | None:
    """The key in a file name, lower-cased, or None if ds4 would not look at a file of this name (FORMAT 1.2)."""
    return name[:40].lower() if _NAME.fullmatch(name) else None


def prefix_digests(prompt: bytes, lengths: Iterable[int]) -> dict[int, bytes]:
    """Length → SHA1 of that prefix of the prompt, for each wanted length that it has, in one pass over its bytes."""
    view = memoryview(prompt)
    digest = hashlib.sha1(usedforsecurity=False)
    found: dict[int, bytes] = {}
    done = 0
    for length in sorted({n for n in lengths if 0 <= n <= len(prompt)}):
        digest.update(view[done:length])
        done = length
        found[length] = digest.digest()
    return found
