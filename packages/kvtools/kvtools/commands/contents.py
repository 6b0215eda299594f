"""Verbs that take out what checkpoints hold: tree, tools, text, tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvformat.errors import KVError
from kvtools.opening import files_of, still_there
from kvtools.options import directory_argument, exit_code, output_options, paths_argument
from kvtools.output import print_json, print_jsonl, print_table, progress, safe

file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))


@click.command()
@directory_argument
@output_options
def tree(directory: Path, style: str | None) -> None:
    """Show which file extends which, what they repeat, and which are covered by longer ones."""
    from kvtools import foresting

    nodes = foresting.forest(directory)
    if style == "json":
        found = [foresting.node_fields(node) for node in nodes]
        print_json({"directory": str(directory), "files": found, "totals": foresting.totals(nodes)})
    elif style == "jsonl":
        for node in nodes:
            print_jsonl(foresting.node_fields(node))
    else:
        print_table(foresting.COLUMNS, map(foresting.row, nodes), foresting.RIGHT)
        click.echo(foresting.summary(nodes), err=not sys.stdout.isatty())


@click.command()
@paths_argument
@output_options
def tools(paths: tuple[Path, ...], style: str | None) -> None:
    """Show the tool call ids of each file and their sampled blocks, and what is missing or said twice."""
    from kvtools import contents

    files = list(files_of(paths))
    reports, fields, codes = [], [], []
    for path in progress(still_there(files, paths), "reading tool maps", len(files)):
        try:
            report = contents.tool_report(path)
        except KVError as error:
            if path not in paths and not path.exists():  # gone since the directory was listed
                continue
            codes.append(error.code)
            fields.append(contents.failed_fields(path, error))
            if style is None:
                click.echo(f"kvtool: {safe(str(error).encode())}", err=True)
        else:
            reports.append(report)
            fields.append(contents.tool_fields(report))
            if style is None:
                contents.print_tools(report)
        if style == "jsonl":
            print_jsonl(fields.pop())
    several = contents.duplicates(reports)
    if style == "json":
        twice = [{"id": safe(name), "blocks": count} for name, count in several.items()]
        print_json({"files": fields, "duplicates": twice})
    elif style is None:
        for name, count in several.items():
            click.echo(f"{safe(name)} stands for {count} different blocks")
    raise SystemExit(exit_code(codes))


@click.command()
@file_argument
def text(file: Path) -> None:
    """Write the text that a file is the checkpoint of: its own bytes in a pipe, escaped on a terminal."""
    from kvformat.envelope import Envelope
    from kvtools import contents

    with Envelope.open(file) as checkpoint:
        contents.print_text(checkpoint, sys.stdout)


@click.command()
@file_argument
@output_options
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A GGUF or a tokenizer.json: show what each token stands for.",
)
def tokens(file: Path, style: str | None, tokenizer: Path | None) -> None:
    """Write the token ids of a file, all on one line; with a tokenizer one per line, with its piece of text."""
    from kvformat.envelope import Envelope
    from kvtools import contents

    with Envelope.open(file) as checkpoint:
        ids = checkpoint.token_ids().tolist()
    pieces = None
    if tokenizer is not None:
        from kvtools.extras import load_tokenizer

        pieces = contents.token_pieces(ids, load_tokenizer(tokenizer))
    if style is not None:
        fields: dict[str, Any] = {"path": str(file), "tokens": len(ids), "ids": ids, "pieces": pieces}
        (print_json if style == "json" else print_jsonl)(fields)
    elif pieces is None:
        click.echo(" ".join(map(str, ids)))
    else:
        print_table(("position", "id", "piece"), zip(range(len(ids)), ids, pieces, strict=True), frozenset({0, 1}))
