"""The context window: what of a prompt it has room for, in tokens, and the refusal of all that is more."""

from __future__ import annotations

from contextlib import suppress

from kvprompt.errors import TooManyTokens
from kvprompt.tokenizer import Tokenizer

from .errors import Refused
from .wire import Failed


class Window:
    """A context of `tokens`, the last of which is the answer's."""

    def __init__(self, tokenizer: Tokenizer, tokens: int) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens

    def fit(self, text: bytes, *, start: int, cached: int) -> list[int]:
        """The tokens of a prompt from byte `start` on, behind those that are `cached`. Raises Refused once they are too many."""
        try:
            return self._tokenizer.encode_chat(text, start=start, most=self._tokens - 1 - cached)
        except TooManyTokens as error:
            raise self._too_long(cached + error.at_least) from None

    def read_ahead(self, text: bytes) -> None:
        """Tokenise a prompt, to be remembered. Raises Refused if it has more bytes than the longest tokens could hold."""
        if len(text) > self._tokens * self._tokenizer.longest:
            raise self._too_long(len(text) // self._tokenizer.longest)
        with suppress(TooManyTokens):  # a state may stand for the text in fewer tokens
            self._tokenizer.encode_chat(text, most=self._tokens)

    def _too_long(self, counted: int) -> Refused:
        # Anthropic's words: agents look for them, and compact the conversation when they find them.
        sentence = f"prompt is too long: {counted} tokens > {self._tokens - 1} maximum (counted so far); shorten it or raise --ctx"
        members = {"n_prompt_tokens": counted, "n_ctx": self._tokens}
        return Refused(Failed(400, sentence, "context_length_exceeded", members))
