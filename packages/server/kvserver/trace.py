"""--trace: what every request became, in the blocks of ds4-server's own trace, so that `kvtool why --trace` reads both."""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path
from typing import BinaryIO

from kvprompt.conversation import Conversation
from kvprompt.render import RenderedPrompt

from .plan import Plan
from .wire import Finished

log = logging.getLogger("kvserver")

OTHERS = 0o077


class Trace:
    """Appends to one file, request by request."""

    def __init__(self, path: Path) -> None:
        self._file = open_privately(path)
        self._count = 0

    def request(
        self, conversation: Conversation, prompt: RenderedPrompt, plan: Plan, done: Finished, sampled: bytes
    ) -> None:
        """One request, after it was answered."""
        self._count += 1
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._write(f"===== request {self._count} {stamp} =====")
        self._fields(
            kind=conversation.dialect, model=conversation.model, stream=int(conversation.stream),
            tools=int(bool(conversation.tools.schemas)), think_mode=prompt.thinking,
            prompt_tokens=done.usage.prompt, cached_tokens=done.usage.cached,
        )  # fmt: skip
        self._block("cache decision")
        self._fields(
            tool_replay=prompt.replay, cache_source=plan.source, cached_tokens=plan.start, slot=plan.target.number
        )
        if plan.match is not None:
            self._fields(disk_cached_tokens=plan.match.tokens, disk_cache_file=plan.match.path)
        if plan.disk:
            self._write(plan.disk)
        for candidate in plan.considered:
            self._write(f"candidate {candidate.where}: {candidate.tokens} tokens, {candidate.verdict}")
        self._block("rendered prompt")
        self._write(prompt.text)
        self._block("generated text")
        self._write(sampled)
        self._block("parsed message")
        self._fields(finish=done.finish, generated_tokens=done.usage.completion)
        for call in done.turn.calls:
            self._write(f"tool call {call.id} {call.name} {call.arguments}")
        for fault in done.turn.faults:
            self._write(f"tool markup is text: {fault}")
        self._write(f"===== end request {self._count} =====")
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _block(self, name: str) -> None:
        self._write(f"\n--- {name} ---")

    def _fields(self, **values: object) -> None:
        for name, value in values.items():
            self._write(f"{name}: {value}")

    def _write(self, line: str | bytes) -> None:
        self._file.write((line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line) + b"\n")


def open_privately(path: Path) -> BinaryIO:
    """Open a file of prompts to append to it: nobody else's to read, also where it was there before with wider rights."""
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "ab")
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode) and mode & OTHERS:
        told = f"{path} was open to others (mode {stat.S_IMODE(mode):o}) and holds prompts"
        try:
            os.fchmod(file.fileno(), stat.S_IMODE(mode) & ~OTHERS)
            log.warning("%s; it is yours alone now", told)
        except OSError as fault:
            log.warning("%s; it still is: %s", told, fault)
    return file
