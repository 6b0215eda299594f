"""ds4-mini's vocabulary: byte-level BPE with ds4's splitting, trained on dialogues of ours, this repository and Python's library.

python training/tokenizer.py      makes vocabulary.json anew: tokens, merges and types as a GGUF holds them

The dialogues make the tool preamble and the usual words one token each; documentation and code, ours and Python's, make a
coding agent's long first request short in tokens. These change, so what was made once is kept beside this script.
"""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import tokenizers
from generator import dialogues

from kvprompt.markers import SPECIALS
from kvprompt.splitting import ALPHABET, DS4_PATTERN
from kvprompt.tokenizer import Tokenizer

SIZE = 4096
SEED = 8
DIALOGUES = 2000
REPOSITORY = Path(__file__).parents[1]
VOCABULARY = Path(__file__).with_name("vocabulary.json")
NORMAL, CONTROL = 1, 3  # token types of a GGUF

_MARKERS = re.compile("|".join(map(re.escape, SPECIALS)))


def corpus() -> Iterator[str]:
    """Text between markers, each byte as its letter of the byte alphabet."""
    letters = str.maketrans({chr(byte): letter for byte, letter in enumerate(ALPHABET)})
    for text in (*_dialogues(), *_documents()):
        for piece in _MARKERS.split(text):
            yield piece.encode().decode("latin-1").translate(letters)


def _dialogues() -> Iterator[str]:
    for tools in (True, False):
        for dialogue in islice(dialogues(Random(SEED), tools=tools), DIALOGUES):
            yield dialogue.text().decode()


def _documents() -> Iterator[str]:
    """English prose and code: what this repository says, and the documentation and some modules of Python itself."""
    library = Path(sysconfig.get_path("stdlib"))
    for folder, pattern in (
        (REPOSITORY, "docs/*.md"),
        (REPOSITORY, "packages/*/*/*.py"),
        (library, "pydoc_data/topics.py"),
        (library, "[a-f]*.py"),
    ):
        for path in sorted(folder.glob(pattern)):
            yield path.read_text("utf-8")


def train() -> dict[str, list[Any]]:
    """The arrays tokenizer.ggml.tokens, merges and token_type."""
    engine = tokenizers.Tokenizer(tokenizers.models.BPE())
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(DS4_PATTERN), "isolated")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIALS), initial_alphabet=list(ALPHABET), show_progress=False
    )
    engine.train_from_iterator(corpus(), trainer)
    model = json.loads(engine.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokens": [*SPECIALS, *words],
        "merges": [" ".join(pair) for pair in model["merges"]],
        "token_type": [CONTROL] * len(SPECIALS) + [NORMAL] * len(words),
    }


def read() -> dict[str, list[Any]]:
    """The arrays that are kept."""
    return dict(json.loads(VOCABULARY.read_text("utf-8")))


def tokenizer() -> Tokenizer:
    """ds4-mini's tokenizer."""
    arrays = read()
    return Tokenizer.from_vocabulary(arrays["tokens"], arrays["merges"], arrays["token_type"])


if __name__ == "__main__":
    VOCABULARY.write_text(json.dumps(train(), ensure_ascii=False), "utf-8")
