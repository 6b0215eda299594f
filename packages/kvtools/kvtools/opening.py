"""Which files a command means, and how an ambiguous one is settled: by `--shape`, or by a longer file beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from kvformat.bitrot import find_rot
from kvformat.checkpoint import Checkpoint
from kvformat.errors import KVError, Mismatch, NotACheckpoint, OtherDialect
from kvformat.scan import Kind, scan
from kvformat.shapes import KNOWN, RATIOS, Shape
from kvformat.words import Words


def parse_shape(text: str) -> Shape | tuple[int, ...]:
    """`flash`, `pro`, or one ratio per layer such as `0,0,4,128,4` (the other sizes are in the file)."""
    for shape in KNOWN:
        if shape.name == text.lower():
            return shape
    try:
        ratios = tuple(int(part) for part in text.split(","))
    except ValueError:
        ratios = ()
    if not ratios or not set(ratios) <= set(RATIOS):
        names = ", ".join(shape.name for shape in KNOWN)
        raise Mismatch(
            f"unknown shape {text!r}", remedy=f"give one of {names}, or one ratio (0, 4 or 128) per layer: 0,0,4,128,4"
        )
    return ratios


def files_of(paths: Sequence[Path]) -> Iterator[Path]:
    """The files themselves, and for a directory every entry in it that is named like a checkpoint."""
    for path in paths:
        if path.is_dir():
            yield from (path / entry.name for entry in scan(path) if entry.name.endswith(".kv"))
        else:
            yield path


def still_there(files: Iterable[Path], named: Collection[Path]) -> Iterator[Path]:
    """The files without those that a directory listed and that are gone by now: others may be using it."""
    return (path for path in files if path in named or path.exists())


def open_settled(path: Path, hint: Shape | tuple[int, ...] | None = None) -> Checkpoint:
    """Open a file; if several layer patterns fit it, try the hint, then the longer files of its directory."""
    shapes = (hint, *KNOWN) if isinstance(hint, Shape) else KNOWN
    ratios = hint if isinstance(hint, tuple) else None
    checkpoint = _open(path, shapes)
    payload = checkpoint.payload
    if payload is None or (payload.shape is not None and ratios is None):
        return checkpoint
    checkpoint.close()
    if ratios is not None:
        settled: tuple[Shape, ...] = (_with_ratios(ratios, payload.words, path),)
    else:
        settled = tuple(s for s in _longer_shapes(path.parent) if _same_model(s, payload.words))
    checkpoint = Checkpoint.open(path, (*settled, *KNOWN))
    found = None if checkpoint.payload is None else checkpoint.payload.shape
    if ratios is not None and (found is None or found.ratios != ratios):
        checkpoint.close()
        raise Mismatch("--shape does not fit the size of the file", path=path, remedy="give the ratios of its layers")
    return checkpoint


def _open(path: Path, shapes: Iterable[Shape]) -> Checkpoint:
    """Raises Damaged for what is another dialect's, or nobody's, only by one rotten field."""
    try:
        return Checkpoint.open(path, shapes)
    except (OtherDialect, NotACheckpoint) as error:
        raise find_rot(path, getattr(error, "dialect", None)) or error from None


def _with_ratios(ratios: tuple[int, ...], words: Words, path: Path) -> Shape:
    if len(ratios) != words.layers:
        raise Mismatch("--shape has the wrong number of ratios", path=path, expected=words.layers, found=len(ratios))
    return Shape("given", ratios, words.head_dim, words.indexer_dim, words.vocab, words.raw_window)


def _same_model(shape: Shape, words: Words) -> bool:
    return (shape.layers, shape.head_dim, shape.indexer_dim, shape.vocab) == (
        words.layers,
        words.head_dim,
        words.indexer_dim,
        words.vocab,
    )


@lru_cache(maxsize=16)
def _longer_shapes(directory: Path) -> tuple[Shape, ...]:
    """The unnamed shapes that files of at least 128 tokens in this directory have, longest file first."""
    found: dict[Shape, None] = {}
    entries = [e for e in scan(directory) if e.kind is Kind.GOOD and e.header and e.header.tokens >= max(RATIOS)]
    for entry in sorted(entries, key=lambda e: -e.header.tokens if e.header else 0):
        try:
            with Checkpoint.open(directory / entry.name) as checkpoint:
                if checkpoint.payload and checkpoint.payload.shape:
                    found.setdefault(checkpoint.payload.shape)
        except KVError:
            continue
    return tuple(found)
