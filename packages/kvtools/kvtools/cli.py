"""The command line of kvtool: the group of all verbs, and how every refusal ends."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Any, NoReturn

import click

from kvformat.errors import KVError
from kvtools.commands import checking, cleaning, comparing, contents, reading
from kvtools.options import FINE, INTERRUPTED, PROBLEMS, USAGE, exit_code
from kvtools.output import safe


class Verbs(click.Group):
    """The group. It meets a reader of our output who has seen enough before click does, which would call that exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FINE


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("ds4kv"), prog_name="kvtool")
def kvtool() -> None:
    """Open, check and understand DeepSeek-V4 KV checkpoints (.kv files of ds4-server)."""


for verb in (
    *(reading.ls, reading.inspect, checking.verify),
    *(comparing.diff, comparing.why),
    *(contents.tree, contents.tools, contents.text, contents.tokens),
    *(checking.doctor, cleaning.prune, cleaning.pin, cleaning.unpin),
):
    kvtool.add_command(verb)


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
        click.echo(f"kvtool: {safe(os.fsencode(str(error)))}", err=True)
        code = exit_code([error.code]) or PROBLEMS
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    sys.exit(code or FINE)
