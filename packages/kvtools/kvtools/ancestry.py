"""Which files of a directory are prefixes of which, by their keys: what a lookup would start from if the longer file were gone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kvformat import layout
from kvformat.envelope import open_regular
from kvformat.errors import KVError
from kvformat.index import DirectoryIndex
from kvformat.prefix import text_key
from kvformat.scan import Entry, Kind
from kvtools.output import progress


def shorter_ones(directory: Path, entries: Mapping[str, Entry]) -> dict[str, tuple[str, ...]]:
    """Name → the files whose text is a proper prefix of this one's, longest first, of those that were scanned.

    Only of files named by their text; no other is found by a prompt.
    """
    index = DirectoryIndex(directory)
    index.refresh()
    found = {}
    named = [entry for entry in entries.values() if entry.kind is Kind.GOOD and entry.key]
    for entry in progress(named, "reading texts", len(named)):
        text = _text(directory, entry)
        if text and text_key(text) == entry.key:
            prefixes = (shorter.name for shorter in index.prefixes_of(text) if shorter.name in entries)
            found[entry.name] = tuple(name for name in prefixes if entries[name].key != entry.key)
    return found


def _text(directory: Path, entry: Entry) -> bytes:
    """Empty for a file that vanished."""
    assert entry.header is not None
    try:
        with open_regular(directory / entry.name) as file:
            file.seek(layout.TEXT_OFFSET)
            return file.read(entry.header.text_bytes)
    except (KVError, OSError):
        return b""
