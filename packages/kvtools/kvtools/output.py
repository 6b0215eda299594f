"""How kvtool speaks: tables on a terminal, tab-separated lines in a pipe, JSON for programs, progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

T = TypeVar("T")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], right: frozenset[int] = frozenset()) -> None:
    """Aligned on a terminal, where `right` columns are right-aligned; tab-separated with a header line in a pipe.

    A narrow terminal shortens the first column, the name.
    """
    if not sys.stdout.isatty():
        click.echo("\n".join("\t".join(map(str, row)) for row in (columns, *rows)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(
            column, justify="right" if number in right else "left", overflow="ellipsis", no_wrap=number > 0
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)


def print_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Name and value, one a line, the values aligned."""
    shown = [(name, str(value)) for name, value in pairs]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        click.echo(f"  {name:<{width}}  {value}")


def print_json(value: Any) -> None:
    click.echo(_encoded(value, indent=2))


def print_jsonl(value: Any) -> None:
    click.echo(_encoded(value))


def _encoded(value: Any, indent: int | None = None) -> str:
    """JSON in UTF-8, and the bytes of a file name that are none as the escapes that Python makes of them."""
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "backslashreplace").decode()


def mib(count: int) -> str:
    """Bytes as the server's logs give them."""
    return f"{count / (1 << 20):.2f} MiB"


def iso(seconds: int) -> str | None:
    """Unix seconds as ISO 8601 in UTC; None for 0 and for times that no calendar has."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z") if seconds else None
    except (ValueError, OverflowError, OSError):
        return None


def age(seconds: int, now: float) -> str:
    """How long ago a unix time was, in its largest unit: 45s, 12m, 3h, 6d; `future` for a clock that runs ahead."""
    past = now - seconds
    if past < 0:
        return "future"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if past >= size:
            return f"{past / size:.0f}{unit}"
    return f"{past:.0f}s"


def safe(data: bytes) -> str:
    """Any bytes as one printable line: what is not text is escaped, never sent to the terminal."""
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def safe_name(name: str) -> str:
    """A file name as one printable line. Nearly all are plain, and a directory has thousands of them."""
    return name if name.isascii() and name.isprintable() else safe(os.fsencode(name))


def shorten(text: str, width: int, keep: str = "start") -> str:
    """At most `width` characters; keeps the start or the end."""
    if len(text) <= width:
        return text
    return text[: width - 1] + "…" if keep == "start" else "…" + text[1 - width :]


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Pass the items through; after one second, count them on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield from items
        return
    patience = time.monotonic() + 1
    shown = False
    for number, item in enumerate(items):
        if time.monotonic() > patience:
            click.echo(f"\r{label} {number}{f'/{total}' if total else ''}", err=True, nl=False)
            shown = True
        yield item
    if shown:
        click.echo("\r\x1b[K", err=True, nl=False)
