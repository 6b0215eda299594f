"""What kvprompt refuses, each as one sentence for a person; a request's fault carries the HTTP status to show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class PromptError(Exception):
    """Anything that kvprompt refuses."""


class BadRequest(PromptError):
    """The client's request cannot be honoured; `status` is the HTTP status that says so (400 unless given)."""

    def __init__(self, sentence: str, *, status: int = 400) -> None:
        self.status = status
        super().__init__(sentence)


class TooManyTokens(PromptError):
    """A text has more tokens than may be; `at_least` is how many are certain, since nobody counted on."""

    def __init__(self, at_least: int) -> None:
        self.at_least = at_least
        super().__init__(f"the text has at least {at_least} tokens")


class BadModelFile(PromptError):
    """A GGUF or a tokenizer file that is broken, hostile or of a kind that is not understood."""


class MissingExtra(PromptError):
    """An optional package is not installed."""


@contextmanager
def prompt_extra() -> Iterator[None]:
    """Wrap the late imports of the `prompt` extra, so that its absence is a sentence and not a traceback."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise MissingExtra(
            f"the package '{missing.name}' is needed for this; install it with: pip install 'ds4kv[prompt]'"
        ) from None
