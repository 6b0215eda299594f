"""Verbs that delete, and those that keep from it: prune, pin, unpin."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from kvtools.options import FINE, PROBLEMS, directory_argument, output_options
from kvtools.output import print_json, print_jsonl, print_table, safe_name
from kvtools.quantities import Age, Size

files_argument = click.argument(
    "files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path, dir_okay=False)
)


@click.command()
@directory_argument
@output_options
@click.option("--max-size", type=Size(), metavar="8G", help="Of the least valuable files, so many that the rest fits.")
@click.option("--max-age", type=Age(), metavar="30d", help="Files not used for so long.")
@click.option(
    "--min-hits", type=click.IntRange(1), metavar="N", help="Files with fewer hits, where hits mean anything."
)
@click.option("--superseded", is_flag=True, help="Waypoints of a prefill that a longer file begins with.")
@click.option("--orphans", is_flag=True, help="Temps of writers that are gone, sidecars without a checkpoint.")
@click.option("--damaged", is_flag=True, help="Files that are damaged or truncated.")
@click.option("--file", "names", multiple=True, metavar="NAME", help="This entry, whatever it is; may be repeated.")
@click.option("--policy", type=click.Choice(["ours", "upstream", "lru"]), default="ours", help="What a file is worth.")
@click.option("--apply", "applied", is_flag=True, help="Delete. Without it nothing is changed.")
def prune(directory: Path, style: str | None, applied: bool, **criteria: Any) -> None:
    """Show what should go from a directory, why, and what it costs; delete it with --apply."""
    from kvtools import deleting, prunereport, pruning, surveying

    wanted = pruning.Criteria(**criteria)
    if not wanted.any:
        raise click.UsageError("say what should go: --max-size, --max-age, --min-hits, --superseded, --orphans, …")
    now = time.time()
    plan = pruning.plan(surveying.survey(directory, now), wanted)
    outcomes = [outcome for _, outcome in deleting.apply(plan)] if applied else []
    if style == "json":
        print_json(prunereport.plan_fields(plan, outcomes, applied))
    elif style == "jsonl":
        for victim in prunereport.plan_fields(plan, outcomes, applied)["victims"]:
            print_jsonl(victim)
    else:
        print_table(
            prunereport.COLUMNS, (prunereport.row(v, wanted.policy, now) for v in plan.victims), prunereport.RIGHT
        )
        for line in prunereport.summary(plan, outcomes, applied):
            click.echo(line, err=not sys.stdout.isatty())
    raise SystemExit(PROBLEMS if "refused" in outcomes else FINE)


@click.command()
@files_argument
@output_options
def pin(files: tuple[Path, ...], style: str | None) -> None:
    """Keep files from every deletion by prune and by our server. Their own bytes stay as they are."""
    _set_pins(files, style, True)


@click.command()
@files_argument
@output_options
def unpin(files: tuple[Path, ...], style: str | None) -> None:
    """Take the pin off again."""
    _set_pins(files, style, False)


def _set_pins(files: tuple[Path, ...], style: str | None, pin: bool) -> None:
    from kvtools.pinning import set_pin

    done = []
    for path in files:
        set_pin(path, pin)
        done.append({"path": str(path), "pin": pin})
        if style == "jsonl":
            print_jsonl(done[-1])
        elif style is None:
            click.echo(f"{'pinned' if pin else 'unpinned'} {safe_name(str(path))}")
    if style == "json":
        print_json({"files": done})
