"""From a conversation to its prompt, with the tool calls that are remembered. Any thread may ask."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kvformat.store import Store
from kvprompt.conversation import Conversation, Turn
from kvprompt.keys import Key, next_key, next_keys
from kvprompt.render import RenderedPrompt, ReplayCount, Style, render, render_continuation
from kvprompt.replay import Source, ToolMemory

from .errors import Refused
from .slots import Slot, Slots
from .wire import Failed


class Prompts:
    """The renderer with its style and its memory of tool calls; `memory` is None where exact replay is off."""

    def __init__(self, style: Style, memory: ToolMemory | None, store: Store | None) -> None:
        self.style = style
        self.memory = memory
        self._store = store
        self._lock = threading.Lock()

    def render(self, conversation: Conversation, slots: Slots) -> tuple[RenderedPrompt, bool]:
        """The whole prompt; or, for results whose calls the client left out, what follows the state that waits for them.

        The second value says that it is such a continuation. Raises Refused if no state waits.
        """
        with self._lock:
            self._recall(conversation)
            if not conversation.orphans:
                return render(conversation, self.style, self.memory), False
        orphans = set(conversation.orphans)
        slot = next((slot for slot in slots if orphans <= slot.call_ids), None)
        if slot is None or slot.end is None:
            missing = ", ".join(sorted(orphans))
            raise Refused(
                Failed(400, f"continuation state not available for {missing}; replay the full messages history")
            )
        return self._continuation(conversation, slot, slot.end.text), True

    def _continuation(self, conversation: Conversation, slot: Slot, known: bytes) -> RenderedPrompt:
        start = next(i for i, message in enumerate(conversation.messages) if message.result_ids)
        text = known + render_continuation(conversation, start, self.style)
        return RenderedPrompt(text, conversation.thinking.within(self.style.context), ReplayCount())

    def remember(self, pairs: Iterable[tuple[str, bytes]], source: Source = Source.RAM) -> None:
        """Bind tool call ids to the blocks that they were sampled in."""
        if self.memory is not None:
            with self._lock:
                for id, block in pairs:
                    self.memory.remember([id], block, source)

    def next_keys(
        self, conversation: Conversation, prompt: RenderedPrompt, turn: Turn, sampled: bytes
    ) -> tuple[Key, set[Key]]:
        """What every client's next request will begin with, and what each kind of client's will."""
        with self._lock:
            told = (conversation, prompt, turn, sampled, self.style, self.memory)
            return next_key(*told), next_keys(*told)

    def bindings(self, text: bytes) -> tuple[tuple[bytes, bytes], ...]:
        """The tool map that a checkpoint of this text carries."""
        if self.memory is None:
            return ()
        with self._lock:
            return tuple((id.encode("utf-8", "surrogateescape"), block) for id, block in self.memory.bindings_in(text))

    def _recall(self, conversation: Conversation) -> None:
        """Look the blocks of unknown call ids up on disk."""
        if self.memory is None or self._store is None:
            return
        ids = {call.id for message in conversation.messages for call in message.calls}
        wanted = {id.encode("utf-8", "surrogateescape"): id for id in ids if id and id not in self.memory}
        if wanted:
            for id, block in self._store.find_tools(wanted).items():
                self.memory.remember([wanted[id]], block, Source.DISK)
