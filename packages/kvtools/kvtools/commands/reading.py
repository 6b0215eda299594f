"""Verbs that show what is there: ls, inspect."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from kvtools.opening import files_of, still_there
from kvtools.options import directory_argument, exit_code, output_options, paths_argument, shape_option
from kvtools.output import print_json, print_jsonl, print_table, progress, safe


@click.command()
@directory_argument
@output_options
def ls(directory: Path, style: str | None) -> None:
    """List every entry of a checkpoint directory, oldest use first."""
    from kvtools import listing

    entries = listing.list_directory(directory)
    if style == "json":
        found = [listing.entry_fields(entry) for entry in entries]
        print_json({"directory": str(directory), "entries": found, "totals": listing.totals(entries)})
    elif style == "jsonl":
        for entry in entries:
            print_jsonl(listing.entry_fields(entry))
    else:
        now = time.time()
        print_table(listing.COLUMNS, (listing.row(entry, now) for entry in entries), listing.RIGHT)
        click.echo(listing.summary(entries), err=not sys.stdout.isatty())


@click.command()
@paths_argument
@output_options
@shape_option
@click.option("--map", "full_map", is_flag=True, help="Show where every tensor lies, not one line per layer.")
@click.option("--hex", "as_hex", is_flag=True, help="Show the first bytes with the fields that stand there.")
def inspect(paths: tuple[Path, ...], style: str | None, shape: Any, full_map: bool, as_hex: bool) -> None:
    """Show what is in a file: header, key, text, payload map, tools."""
    from kvtools import hexdump, inspecting, report

    files = list(files_of(paths))
    if not files and style is None:
        click.echo("no .kv file to inspect", err=True)
    if as_hex:
        for path in files:
            click.echo(safe(os.fsencode(path)))
            print_table(hexdump.COLUMNS, hexdump.annotated(path))
        return
    codes = []
    reports = []
    for number, path in enumerate(progress(still_there(files, paths), "inspecting", len(files))):
        if style is None:
            click.echo(nl=number > 0)
            error = report.show(path, shape, full_map or len(files) == 1, full_map)
            codes.append(error.code if error else None)
            continue
        reports.append(inspecting.inspect_file(path, shape))
        codes.append(reports[-1].get("error", {}).get("code"))
        if style == "jsonl":
            print_jsonl(reports.pop())
    if style == "json":
        print_json({"files": reports})
    raise SystemExit(exit_code(codes))
