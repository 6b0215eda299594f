"""Verbs that judge: verify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kvtools.opening import files_of, still_there
from kvtools.options import exit_code, output_options, paths_argument, shape_option
from kvtools.output import print_json, print_jsonl, progress


@click.command()
@paths_argument
@output_options
@shape_option
def verify(paths: tuple[Path, ...], style: str | None, shape: Any) -> None:
    """Check structure, name, token ids and logits; the layers themselves are not read."""
    from kvtools import verifying

    files = list(files_of(paths))
    reports = []
    for path in progress(still_there(files, paths), "verifying", len(files)):
        found = verifying.verify(path, shape)
        reports.append(found)
        if style == "jsonl":
            print_jsonl(verifying.report_fields(found))
        elif style is None:
            verifying.print_report(found)
    if style == "json":
        print_json(
            {"files": [verifying.report_fields(found) for found in reports], "totals": verifying.totals(reports)}
        )
    elif style is None:
        click.echo(verifying.summary(reports), err=not sys.stdout.isatty())
    raise SystemExit(exit_code([found.verdict for found in reports]))
