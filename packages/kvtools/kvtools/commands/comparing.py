"""Verbs that compare: diff (two files), why (a prompt and a directory)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtools import requesting
from kvtools.options import FINE, PROBLEMS, directory_argument, output_options, shape_option
from kvtools.output import print_json, print_jsonl

if TYPE_CHECKING:
    from kvformat.reader import Reader
    from kvtools import whyreport

GIVEN = click.Path(exists=True, dir_okay=False, path_type=Path)


class Volatile(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """Names of what is stripped, as kvserve's option takes them: joined by commas, or none."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(value.split(",")) if value != "none" else ()
        for name in names:
            if name not in requesting.VOLATILE:
                self.fail(f"{name!r} is no known volatile text; known are {', '.join(requesting.VOLATILE)}", param, ctx)
        return names


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@output_options
@shape_option
@click.option("--atol", type=click.FloatRange(min=0), default=0.0, help="Floats this far apart are equal.")
@click.option("--rtol", type=click.FloatRange(min=0), default=0.0, help="The same, relative to the value in B.")
def diff(a: Path, b: Path, style: str | None, shape: Any, atol: float, rtol: float) -> None:
    """Tell whether two files are the same state, and where they part. Slots that no reader looks at are left out."""
    from kvtools import diffing, diffreport
    from kvtools.tensors import Tolerance

    found = diffing.diff_files(a, b, shape, Tolerance(atol, rtol))
    if style is None:
        diffreport.print_diff(found)
    else:
        show = print_json if style == "json" else print_jsonl
        show(diffreport.diff_fields(str(a), str(b), found))
    raise SystemExit(FINE if found.equal else PROBLEMS)


@click.command()
@directory_argument
@output_options
@shape_option
@click.option("--prompt", type=GIVEN, help="A file that holds the rendered prompt, byte for byte.")
@click.option("--request", type=GIVEN, help="A file that holds the JSON body of a request.")
@click.option("--trace", type=GIVEN, help="A trace file of the server; its last request is taken.")
@click.option("--number", type=int, help="With --trace: the request of this number instead of the last.")
@click.option("--dialect", type=click.Choice(list(requesting.DIALECTS)), help="With --request: how to read it.")
@click.option(
    "--tool-preamble",
    type=click.Choice((requesting.AUTO, *requesting.PREAMBLES)),
    default=requesting.AUTO,
    show_default=True,
    help="With --request: the wording of the tool preamble, as the server's option of this name says it.",
)
@click.option(
    "--strip-volatile",
    type=Volatile(),
    help="With --request: what the server strips from system texts, as its option of this name says it.",
)
@click.option("--model", type=GIVEN, help="The server's GGUF. [default: the model of the file used last]")
@click.option("--ctx", type=click.IntRange(min=1), default=32768, show_default=True, help="The server's context.")
@click.option("--min-tokens", type=click.IntRange(min=0), default=512, show_default=True, help="The server's minimum.")
@click.option("--quant", type=click.Choice(["2", "4"]), help="The server's quant bits. [default: the model's]")
@click.option("--reject-different-quant", is_flag=True, help="The server does not take files of other quant bits.")
def why(directory: Path, style: str | None, **given: Any) -> None:
    """Tell what a request would start from, and why no longer file served. Exit code 1: from nothing."""
    from kvtools import explaining, whyreport

    if sum(given[source] is not None for source in ("prompt", "request", "trace")) != 1:
        raise click.UsageError("give one of --prompt, --request and --trace")
    quant = given["quant"] and int(given["quant"])
    knobs = explaining.Knobs(given["ctx"], given["min_tokens"], quant, given["reject_different_quant"])
    reader = explaining.open_reader(directory, knobs, given["shape"], given["model"])
    asked = _asked(reader, given)
    found = explaining.why(reader, asked.prompt)
    answer = whyreport.Answer(directory, reader.identity, knobs, asked, found)
    if style is None:
        whyreport.print_answer(answer)
    else:
        show = print_json if style == "json" else print_jsonl
        show(whyreport.answer_fields(answer))
    raise SystemExit(FINE if found.start else PROBLEMS)


def _asked(reader: Reader, given: dict[str, Any]) -> whyreport.Asked:
    from kvtools import extras, tracing, whyreport, wordings

    if given["prompt"]:
        return whyreport.Asked(given["prompt"].read_bytes())
    if given["trace"]:
        traced = tracing.read_trace(given["trace"], given["number"])
        return whyreport.Asked(traced.prompt, traced=traced)
    with extras.usable_as("a request", given["request"]):
        told = given["tool_preamble"]
        request = requesting.read_request(
            given["request"].read_bytes(),
            dialect=given["dialect"],
            ctx=reader.ctx,
            preamble=wordings.of_directory(reader) if told == requesting.AUTO else told,
            volatile=given["strip_volatile"],
            find_tools=reader.find_tools,
        )
        return whyreport.Asked(request.prompt, request)
