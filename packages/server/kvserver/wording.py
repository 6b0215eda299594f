"""Which wording of the tool preamble prompts are written in: the directory's own, or none of its files with tools is found."""

from __future__ import annotations

from dataclasses import dataclass

from kvformat.store import Store
from kvprompt.markers import PREAMBLE_BYTES, Preamble, preamble_of


@dataclass(frozen=True, slots=True)
class Wording:
    """A wording, and where it comes from in a few words."""

    preamble: Preamble
    origin: str

    def __str__(self) -> str:
        return f"tool preamble of {self.preamble} ({self.origin})"


def choose(told: str, store: Store | None) -> Wording:
    """The wording that was told; for auto, that of the file with tools that was used last, August's where there is none."""
    if told != "auto":
        return Wording(Preamble(told), "--tool-preamble")
    for path, start in store.text_starts(PREAMBLE_BYTES) if store else ():
        if preamble := preamble_of(start):
            return Wording(preamble, f"that of {path.name}")
    return Wording(Preamble.AUGUST, "the newest; no file has another")
