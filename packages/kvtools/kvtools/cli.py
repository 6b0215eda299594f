"""The command line of kvtool: thin click functions over typed ones, and the exit codes.

0 fine, 1 problems found, 2 usage, 3 something could not be read, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from kvformat.errors import Damaged, KVError, NotACheckpoint, Truncated, Unreadable
from kvformat.shapes import Shape
from kvtools.opening import files_of, parse_shape

FINE, PROBLEMS, USAGE, UNREADABLE, INTERRUPTED = 0, 1, 2, 3, 130
UNSOUND = frozenset({NotACheckpoint.code, Truncated.code, Damaged.code})
F = TypeVar("F", bound=Callable[..., Any])


class ShapeType(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shape | tuple[int, ...]:
        try:
            return parse_shape(value)
        except KVError as error:
            self.fail(str(error), param, ctx)


def output_options(command: F) -> F:
    command = click.option("--jsonl", "style", flag_value="jsonl", help="One JSON object per file and line.")(command)
    return click.option("--json", "style", flag_value="json", help="One JSON object with stable keys.")(command)


shape_option = click.option(
    "--shape",
    type=ShapeType(),
    metavar="SHAPE",
    help="Settle an ambiguous file: flash, pro, or one ratio per layer such as 0,0,4,128,4.",
)
paths_argument = click.argument("paths", nargs=-1, required=True, metavar="FILE…|DIR", type=click.Path(path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("ds4kv"), prog_name="kvtool")
def kvtool() -> None:
    """Open, check and understand DeepSeek-V4 KV checkpoints (.kv files of ds4-server)."""


@kvtool.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@output_options
def ls(directory: Path, style: str | None) -> None:
    """List every entry of a checkpoint directory, oldest use first."""
    from kvtools import listing
    from kvtools.output import print_json, print_jsonl, print_table

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


@kvtool.command()
@paths_argument
@output_options
@shape_option
@click.option("--map", "full_map", is_flag=True, help="Show where every tensor lies, not one line per layer.")
@click.option("--hex", "as_hex", is_flag=True, help="Show the first bytes with the fields that stand there.")
def inspect(paths: tuple[Path, ...], style: str | None, shape: Any, full_map: bool, as_hex: bool) -> None:
    """Show what is in a file: header, key, text, payload map, tools."""
    from kvtools import hexdump, inspecting, report
    from kvtools.output import print_json, print_jsonl, print_table, progress

    files = list(files_of(paths))
    if as_hex:
        for path in files:
            click.echo(path)
            print_table(hexdump.COLUMNS, hexdump.annotated(path))
        return
    codes = []
    reports = []
    for number, path in enumerate(progress(files, "inspecting", len(files))):
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


@kvtool.command()
@paths_argument
@output_options
@shape_option
def verify(paths: tuple[Path, ...], style: str | None, shape: Any) -> None:
    """Check structure, name, token ids and logits; the layers themselves are not read."""
    from kvtools import verifying
    from kvtools.output import print_json, print_jsonl, progress

    files = list(files_of(paths))
    reports = []
    for path in progress(files, "verifying", len(files)):
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


def exit_code(codes: Iterable[str | None]) -> int:
    """3 if anything could not be read, else 1 if anything is unsound, else 0. What is merely not ours is no problem."""
    found = set(codes)
    if Unreadable.code in found:
        return UNREADABLE
    return PROBLEMS if found & UNSOUND else FINE


def main() -> NoReturn:
    """Run kvtool and leave with its exit code; every refusal is one sentence on stderr."""
    try:
        code = kvtool.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = USAGE
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except KVError as error:
        click.echo(f"kvtool: {error}", err=True)
        code = exit_code([error.code]) or PROBLEMS
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FINE
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    sys.exit(code or FINE)
