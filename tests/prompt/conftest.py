"""The golden prompt data of the real ds4, and its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprompt.gguf_header import read_gguf
from kvprompt.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL = GOLDEN / "models" / "tiny-q2.gguf"


def golden(name: str) -> Any:
    """One JSON file of tests/golden/prompt."""
    return json.loads((GOLDEN / "prompt" / name).read_text("utf-8"))


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """ds4's tokenizer of the golden models."""
    return Tokenizer.from_gguf(read_gguf(MODEL))
