"""What the store's tests share: a small model, conversations whose texts are prefixes of each other, a clock to move."""

from __future__ import annotations

import builtins
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvformat.errors import KVError
from kvformat.governor import Limits
from kvformat.header import Header
from kvformat.identity import Identity
from kvformat.policy import Reason
from kvformat.prefix import text_key
from kvformat.shapes import Shape
from kvformat.state import SessionState, empty_state
from kvformat.store import Match, Options, Outcome, Store
from kvformat.writer import Contents
from strategies import built, random_state

SHAPE = Shape("small", (0, 4, 128), head_dim=3, indexer_dim=2, vocab=16, window=8)
IDENTITY = Identity(SHAPE, quant_bits=2)
CTX = 1000
NOW = 1_800_000_000.0
EVERY_SAVE = Limits(min_gain=0)


class Clock:
    """Unix seconds that move only when told."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def open_store(
    directory: Path,
    identity: Identity = IDENTITY,
    ctx: int = CTX,
    clock: Callable[[], float] | None = None,
    **options: Any,
) -> Store:
    """A store without a minimum, without a governor and without syncs, unless the options say otherwise."""
    chosen = Options(**{"min_tokens": 1, "limits": EVERY_SAVE, "durable": False, **options})
    return Store(directory, identity, ctx, chosen, clock or Clock())


def said(name: str, tokens: int) -> bytes:
    """The text of the first `tokens` tokens of a conversation: a prefix of the text of any more."""
    return b"".join(b"%s%03d " % (name.encode(), i) for i in range(tokens))


def save(store: Store, name: str, tokens: int, reason: Reason = Reason.EVICT, **more: Any) -> Outcome:
    state = random_state(store.identity.shape, tokens, CTX, seed=tokens)
    return store.save(state, said(name, tokens), reason, **more)


def stored(store: Store, name: str, tokens: int, reason: Reason = Reason.EVICT, **more: Any) -> Path:
    outcome = save(store, name, tokens, reason, **more)
    assert outcome.status == "stored", outcome
    assert outcome.path is not None
    return outcome.path


def plant(directory: Path, name: str, tokens: int, shape: Shape = SHAPE, generation: int = 2, **header: Any) -> Path:
    """A file as another program left it there; `header` fields are changed afterwards."""
    text = said(name, tokens)
    contents = Contents.from_state(
        random_state(shape, tokens, CTX, seed=tokens),
        text,
        reason="cold",
        quant_bits=2,
        now=int(NOW),
        generation=generation,
    )
    contents = replace(contents, header=contents.header._replace(**header))
    path = directory / f"{text_key(text)}.kv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(built(contents))
    return path


def verdicts(store: Store, prompt: bytes) -> dict[int, str]:
    """Tokens → "usable" or why not, of every candidate, in the order in which they come."""
    return {match.tokens: match.why or match.verdict for match in store.candidates(prompt)}


def restore(store: Store, prompt: bytes) -> tuple[Match, SessionState] | None:
    """What a server does: the first usable candidate that really loads, in one pass."""
    for match in store.candidates(prompt):
        if match.usable:
            try:
                with store.open(match, prompt) as checkpoint:
                    state = empty_state(store.identity.shape, checkpoint.header.tokens, store.ctx)
                    checkpoint.read_into(state)
                    return match, state
            except KVError:
                continue
    return None


def restored(store: Store, prompt: bytes) -> int:
    """Tokens that a prompt can start from, 0 for a miss."""
    found = restore(store, prompt)
    return len(found[1].tokens) if found else 0


def header_of(path: Path) -> Header:
    return Header.decode(path.read_bytes()[:52])


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def count_opens(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Counter[str]:
    """File name → opens from now on, by whatever way, of what lies in the directory."""
    opened: Counter[str] = Counter()
    os_open, builtin_open = os.open, builtins.open

    def note(path: Any) -> None:
        if not isinstance(path, int) and Path(path).is_relative_to(directory):
            opened[Path(path).name] += 1

    def opening(path: Any, *args: Any, **options: Any) -> int:
        note(path)
        return os_open(path, *args, **options)

    def opening_file(path: Any, *args: Any, **options: Any) -> Any:
        note(path)
        return builtin_open(path, *args, **options)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(builtins, "open", opening_file)
    monkeypatch.setattr("io.open", opening_file)
    return opened


def files(directory: Path) -> set[str]:
    """Names of the checkpoints in a directory."""
    return {path.name for path in directory.glob("*.kv")}


def size_of(tmp_path: Path, tokens: int, **more: object) -> int:
    """Bytes of a file of so many tokens."""
    return stored(open_store(tmp_path / "measure"), "m", tokens, **more).stat().st_size
