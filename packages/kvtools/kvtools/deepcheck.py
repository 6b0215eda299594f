"""`kvtool verify --deep`: the tokens of a token-text file render to its text, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvformat.checkpoint import Checkpoint
from kvformat.nearmiss import common_prefix
from kvtools.findings import Finding, Verdict

if TYPE_CHECKING:
    from kvprompt.tokenizer import Tokenizer


def findings(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Iterator[Finding]:
    """A visible key is no rendering of the tokens, and a stripped file has none: both have nothing to say here."""
    payload = checkpoint.payload
    if payload is None or checkpoint.header.key_kind != "token-text":
        return
    if payload.words.vocab != len(tokenizer.token_bytes):
        yield Finding(
            "other-vocabulary",
            f"made with {payload.words.vocab} tokens, the tokenizer has {len(tokenizer.token_bytes)}",
            payload.token_ids.offset,
            Verdict.INCOMPATIBLE,
        )
        return
    if max(checkpoint.token_ids()) >= payload.words.vocab:
        return  # already reported as `token-id`
    rendered, text = tokenizer.decode(checkpoint.token_ids()), checkpoint.text()
    if rendered != text:
        at = common_prefix(rendered, text)
        yield Finding(
            "rendering",
            f"the tokens render to {len(rendered)} bytes that leave the text of {len(text)} bytes at byte {at} of it",
            checkpoint.text_span.offset + at,
            Verdict.DAMAGED,
        )
