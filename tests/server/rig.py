"""The engine side of the server in this process: the golden model, a directory, and a sampler that spells what it is told."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvengine import Sampled
from kvprompt.conversation import Conversation
from kvprompt.dialects import PARSERS
from kvprompt.tokenizer import Tokenizer
from kvserver.driver import Driver
from kvserver.generation import Draw, sampler_of
from kvserver.loading import Loaded, load_gguf
from kvserver.settings import Settings
from kvserver.wire import Failed, Finished, Job, Message, Started

MODELS = Path(__file__).parents[1] / "golden" / "models"

# Small enough for prompts of a few hundred tokens: what the real server's golden runs were started with.
SMALL = Settings(
    ctx=4096,
    prefill_chunk=256,
    kv_cache_min_tokens=32,
    kv_cache_cold_max_tokens=900,
    kv_cache_continued_interval_tokens=64,
    kv_cache_boundary_trim_tokens=8,
    kv_cache_boundary_align_tokens=32,
    kv_cache_min_gain_tokens=1,
)


@cache
def model(kind: str = "q2") -> Loaded:
    """The golden model, loaded once."""
    torch.set_num_threads(1)  # tests run side by side
    return load_gguf(MODELS / f"tiny-{kind}.gguf")


class Spelling:
    """A sampler that spells a text and then ends the answer."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        eos = tokenizer.encode_chat("<｜end▁of▁sentence｜>".encode())
        self._tokens = iter(tokenizer.encode_chat(text.encode()) + eos)

    def draw(self, logits: Tensor, *, greedy: bool = False, top: int = 0) -> Sampled:
        assert torch.isfinite(logits).all()
        return Sampled(next(self._tokens), 0.0)


@dataclass
class Rig:
    """One driver. `says` holds the answers to come, in order; without one the model speaks for itself."""

    settings: Settings
    kind: str = "q2"
    says: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver = Driver(model(self.kind), self.settings, self._draw)

    def _draw(self, conversation: Conversation) -> Draw:
        return Spelling(model(self.kind).tokenizer, self.says.pop(0)) if self.says else sampler_of(conversation)

    @property
    def directory(self) -> Path:
        assert self.settings.kv_disk_dir is not None
        return self.settings.kv_disk_dir

    @property
    def files(self) -> list[Path]:
        """Checkpoints on disk, once all that was begun is written."""
        self.driver.serving.keeper.flush()
        return sorted(self.directory.rglob("*.kv"))

    @property
    def prefilled(self) -> int:
        """Tokens prefilled since the start."""
        return self.driver.serving.tokens["prefilled"]

    def submit(self, path: str, body: dict[str, Any] | bytes) -> tuple[Job, queue.Queue[Message]]:
        messages: queue.Queue[Message] = queue.Queue()
        data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        job = Job(PARSERS[path](data), messages.put)
        self.driver.submit(job)
        return job, messages

    def ask(self, path: str, body: dict[str, Any] | bytes) -> Finished:
        """The finished answer; the wait ends when the server has also put everything in order."""
        done = last(self.submit(path, body)[1])
        assert isinstance(done, Finished), done
        self.settle()
        return done

    def chat(self, *messages: dict[str, Any], **fields: Any) -> Finished:
        """A chat with thinking off, at temperature 0."""
        body = {"model": "deepseek-chat", "messages": messages, "temperature": 0, "max_tokens": 8} | fields
        return self.ask("/v1/chat/completions", body)

    def settle(self) -> None:
        """After a Finished: wait until the engine's thread has also put everything in order."""
        while self.driver._busy.is_set():
            time.sleep(0.002)

    def close(self) -> None:
        self.driver.stop()
        self.driver.close()


def last(messages: queue.Queue[Message]) -> Message:
    """The message that ends a job."""
    while True:
        message = messages.get(timeout=120)
        if not isinstance(message, Started) and isinstance(message, Finished | Failed):
            return message


@contextmanager
def rig(directory: Path | None = None, settings: Settings = SMALL, kind: str = "q2", **changes: Any) -> Iterator[Rig]:
    """A running driver on a directory, saved and ended at the end."""
    running = Rig(replace(settings, kv_disk_dir=directory, **changes), kind)
    try:
        yield running
    finally:
        running.close()
