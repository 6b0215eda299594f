"""What the commands share: their options, and the exit codes.

0 fine, 1 problems found, 2 usage, 3 something could not be read, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvformat.errors import Damaged, KVError, Mismatch, NotACheckpoint, Truncated, Unreadable
from kvformat.shapes import Shape
from kvtools.opening import parse_shape

FINE, PROBLEMS, USAGE, UNREADABLE, INTERRUPTED = 0, 1, 2, 3, 130
UNSOUND = frozenset({NotACheckpoint.code, Truncated.code, Damaged.code, Mismatch.code})
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
directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
paths_argument = click.argument("paths", nargs=-1, required=True, metavar="FILE…|DIR", type=click.Path(path_type=Path))


def exit_code(codes: Iterable[str | None]) -> int:
    """3 if anything could not be read, else 1 if anything is unsound, else 0. What is merely not ours is no problem."""
    found = set(codes)
    if Unreadable.code in found:
        return UNREADABLE
    return PROBLEMS if found & UNSOUND else FINE
