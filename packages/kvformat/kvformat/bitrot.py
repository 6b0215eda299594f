"""Rot or progress: a file that no dialect explains, and that one right byte would make a checkpoint of ours, is damaged.

A wrong magic, version or length makes a file look like another program's. Its name tells: it is the SHA1 of the text, and the
sizes of text and payload still add up to a state of upstream's. Two faults at once are beyond this; such a file stays unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kvformat import layout
from kvformat.dialects import Dialect, Origin
from kvformat.envelope import open_regular
from kvformat.errors import Damaged, KVError
from kvformat.header import FRONT_BYTES, Header
from kvformat.prefix import key_of_name, prefix_digests
from kvformat.recognition import Peek, exceeds
from kvformat.words import WORDS_BYTES, Words

LONGEST_TEXT = 64 << 20  # bytes of a text that is read to find the length that the name belongs to
OTHERS_VERSIONS = (2, 3)  # of KVC
LAST_DSV4 = 12  # the highest version that some dialect has


def find_rot(path: Path, dialect: Dialect | None) -> Damaged | None:
    """The one field that is wrong in a file of an unknown dialect (None: of no dialect); None if it may be somebody's.

    Reads the text of the few files that nobody explains, and of no others.
    """
    key = key_of_name(path.name)
    if key is None or (dialect is not None and dialect.origin is not Origin.UNKNOWN):
        return None
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            peek = partial(os.pread, file.fileno())
            if size < FRONT_BYTES + WORDS_BYTES:
                return None
            return next(_faults(Header.decode(peek(FRONT_BYTES, 0)), size, peek, bytes.fromhex(key)), None)
    except (KVError, OSError, OverflowError):
        return None


def _faults(header: Header, size: int, peek: Peek, key: bytes) -> Iterator[Damaged]:
    """Each way in which one field of the file can be wrong and all the others right."""
    if (header.magic, header.version) != (layout.KVC_MAGIC, layout.KVC_VERSION):
        whole = header._replace(magic=layout.KVC_MAGIC, version=layout.KVC_VERSION)
        of_somebody = header.magic == layout.KVC_MAGIC and header.version in OTHERS_VERSIONS
        if not of_somebody and _has_key(whole, size, peek, key) and _is_ours(whole, _words(whole, peek)):
            yield Damaged("the first four bytes are wrong", offset=0, expected=r"KVC\x01", found=repr(peek(4, 0)))
        return
    if _has_key(header, size, peek, key):
        words, offset = _words(header, peek), header.payload_offset
        if words.magic != layout.DSV4_MAGIC and _is_ours(header, words._replace(magic=layout.DSV4_MAGIC)):
            yield Damaged("the payload's magic is wrong", offset=offset, expected="DSV4", found=repr(words.magic))
        right = layout.GENERATIONS.get(header.payload_abi, words.version)
        if not 0 < words.version <= LAST_DSV4 and _is_ours(header, words._replace(version=right)):
            yield Damaged("the payload's version is wrong", offset=offset + 4, expected=right, found=words.version)
        return
    for length in _lengths(header, size, peek, key):
        if _is_ours(whole := header._replace(text_bytes=length), _words(whole, peek)):
            yield Damaged(
                "the length of the text is wrong", offset=layout.HEADER_BYTES, expected=length, found=header.text_bytes
            )


def _has_key(header: Header, size: int, peek: Peek, key: bytes) -> bool:
    """Whether the name is the SHA1 of the text where the header puts it."""
    if header.payload_end > size or header.text_bytes > LONGEST_TEXT:
        return False
    text = peek(header.text_bytes, layout.TEXT_OFFSET)
    return prefix_digests(text, [header.text_bytes]).get(header.text_bytes) == key


def _lengths(header: Header, size: int, peek: Peek, key: bytes) -> list[int]:
    """The lengths at which a payload seems to begin and whose text has the name as its SHA1."""
    longest = size - header.payload_bytes - layout.TEXT_OFFSET
    if not 0 < longest <= LONGEST_TEXT:
        return []
    text = peek(longest + len(layout.DSV4_MAGIC), layout.TEXT_OFFSET)
    places = (match.start() for match in re.finditer(re.escape(layout.DSV4_MAGIC), text))
    return [length for length, digest in prefix_digests(text, places).items() if digest == key]


def _words(header: Header, peek: Peek) -> Words:
    return Words.decode(peek(WORDS_BYTES, header.payload_offset).ljust(WORDS_BYTES, b"\0"))


def _is_ours(header: Header, words: Words) -> bool:
    """Whether all of it is what upstream writes."""
    version = layout.GENERATIONS.get(header.payload_abi)
    if (words.magic, words.version) != (layout.DSV4_MAGIC, version) or not header.tokens:
        return False
    try:
        words.check(header)
    except Damaged:
        return False
    return exceeds(header, words, 0)
