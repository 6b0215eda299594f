"""The tool preamble has two wordings (ds4 changed it on 2026-08-04), and a request is found in files of its own wording only.

kvprompt knows them again; it is reached late, as everywhere in kvtools.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from kvformat.header import Header
from kvformat.nearmiss import start_of_text
from kvformat.reader import Reader
from kvformat.scan import Entry
from kvtools.doctoring import Ailment, Patient, Severity
from kvtools.requesting import PREAMBLES
from kvtools.surveying import Standing


def wording_of(text: bytes) -> str | None:
    """The wording that a rendered text begins with; None if it begins without tools."""
    from kvprompt.markers import preamble_of

    return preamble_of(text)


def of_directory(reader: Reader) -> str:
    """What a server with `--tool-preamble auto` writes there."""
    from kvprompt.markers import PREAMBLE_BYTES

    found = (wording_of(start) for _, start in reader.text_starts(PREAMBLE_BYTES))
    return next(filter(None, found), PREAMBLES[-1])


def explain(path: Path, header: Header, prompt: bytes, byte: int) -> str:
    """What is to be said of a file that differs from the prompt at this byte; empty if that is not for the wording."""
    from kvprompt.markers import BOS, PREAMBLE_BYTES

    if not len(BOS.encode()) < byte < PREAMBLE_BYTES:
        return ""
    theirs, ours = wording_of(start_of_text(path, header, PREAMBLE_BYTES) or b""), wording_of(prompt)
    if theirs is None or ours is None or theirs == ours:
        return ""
    return (
        f": its tool preamble has the wording of {theirs}, the prompt that of {ours}; see the server's --tool-preamble"
    )


def mixed(patient: Patient) -> Iterator[Ailment]:
    """Both wordings: what was written in one is prefilled again by a server that writes the other."""
    found = _by_wording(patient)
    if len(found) > 1:
        latest = max(found, key=lambda wording: max(entry.header.used for entry in found[wording] if entry.header))
        counts = " and ".join(f"{len(found[wording])} files the wording of {wording}" for wording in sorted(found))
        others = tuple(entry.name for wording in found if wording != latest for entry in found[wording])
        yield Ailment(
            "mixed-wordings",
            Severity.NOTE,
            f"of the tool preamble, {counts}: a request with tools is found among those of its own wording only",
            f"kvserve follows the file used last, here {latest}; --tool-preamble WORDING with a directory for each keeps both",
            others,
        )


def _by_wording(patient: Patient) -> dict[str, list[Entry]]:
    from kvprompt.markers import PREAMBLE_BYTES

    found = defaultdict(list)
    for entry in patient.seen.of(Standing.CACHE):
        assert entry.header is not None
        start = start_of_text(patient.directory / entry.name, entry.header, PREAMBLE_BYTES)
        if wording := wording_of(start or b""):
            found[wording].append(entry)
    return found
