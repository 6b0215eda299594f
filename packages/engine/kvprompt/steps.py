"""Long text in steps: cut where no word of either splitting crosses, so that the steps' tokens are those of the whole.

That is behind a word in ASCII, before a space or after a line feed, where the next word begins with an ASCII letter. Three more
ASCII bytes in front keep a lead byte from taking the place along. Text without such places is one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

STEP = 1 << 16  # bytes

_BORDER = re.compile(rb"(?<=[ -~]{3}[A-Za-z0-9])(?= [A-Za-z])|(?<=[ -~]{3}[A-Za-z0-9]\n)(?=[A-Za-z])")


def steps(text: bytes, size: int = STEP) -> Iterator[bytes]:
    """The text in pieces of at least `size` bytes; the last is what is left."""
    start = 0
    while (border := _BORDER.search(text, start + size)) is not None:
        yield text[start : border.start()]
        start = border.start()
    yield text[start:]
