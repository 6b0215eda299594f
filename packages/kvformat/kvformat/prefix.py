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


def prefix_keys(prompt: bytes, lengths: Iterable[int]) -> dict[int, str]:
    """Length → key of that prefix of the prompt, for each wanted length that it has, in one pass over its bytes."""
    view = memoryview(prompt)
    digest = hashlib.sha1(usedforsecurity=False)
    keys: dict[int, str] = {}
    done = 0
    for length in sorted(set(lengths)):
        if not 0 <= length <= len(prompt):
            continue
        digest.update(view[done:length])
        done = length
        keys[length] = digest.hexdigest()
    return keys
