"""What a lookup says of a file that the prompt begins with. The words are those of the log, which has a closed list of them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """Whether a request can start from a file, and if not what kind of reason there is."""

    USABLE = "usable"
    UNREADABLE = "unreadable"  # or known to have failed in this process
    BELOW_MIN_TOKENS = "below min tokens"
    CONTEXT_TOO_LARGE = "context too large"
    QUANT_DIFFERS = "quant differs"
    DIFFERENT_MODEL = "different model"


class Refusal(NamedTuple):
    """A verdict that is not `USABLE`, and `why` with the numbers."""

    verdict: Verdict
    why: str
