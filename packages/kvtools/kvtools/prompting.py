"""The way into kvprompt: late, and with a sentence instead of a traceback for what it refuses or lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def prompt_errors() -> Iterator[None]:
    """Wrap everything that may reach into kvprompt. What it refuses is a usage error."""
    try:
        from kvprompt.errors import PromptError
    except ModuleNotFoundError as missing:
        raise _without(missing) from None
    try:
        yield
    except PromptError as refused:
        raise click.UsageError(str(refused)) from None
    except ModuleNotFoundError as missing:
        raise _without(missing) from None


def _without(missing: ModuleNotFoundError) -> click.UsageError:
    return click.UsageError(
        f"the package '{missing.name}' is needed for this; install it with: pip install 'ds4kv[prompt]'"
    )
