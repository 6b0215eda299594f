"""Long text in steps: cut where no word of either splitting crosses, so that the steps' tokens are those of the whole.

That is behind a word in ASCII, before a space, or after a line feed that a letter follows. Three more ASCII bytes in front keep a
lead byte from taking the place along. Text without such places is one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

STEP = 1 << 16  # bytes

# The space or the line feed first: that is what a search skips to.
_BORDER = re.compile(rb" (?<=[ -~]{3}[A-Za-z0-9] )|\n(?<=[ -~]{3}[A-Za-z0-9]\n)(?=[A-Za-z])")


def steps(text: bytes, size: int = STEP) -> Iterator[bytes]:
    """The text in pieces of about `size` bytes.

    Counted from the end, since the end is what a text has in common with what follows a checkpoint inside it.
    """
    start = 0
    for at in range(len(text) % size, len(text), size):
        if (found := _BORDER.search(text, at, at + size)) is not None:
            border = found.start() if found[0] == b" " else found.end()
            if border > start:
                yield text[start:border]
                start = border
    yield text[start:]
