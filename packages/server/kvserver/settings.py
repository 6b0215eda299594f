"""Every option, declared once: its default, its help and what it may be. Read from the command line, then the
environment (KVSERVE_ and the option's name), then a TOML file (--config), then from here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import click

from kvformat.eviction import EvictionPolicy
from kvformat.policy import BoundaryOrder
from kvprompt.markers import Preamble
from kvprompt.volatile import DEFAULT_VOLATILE, VOLATILE

ENVIRONMENT = "KVSERVE"
MODEL, HTTP, DISK, PROMPT, LOG = "Model", "HTTP", "Checkpoints on disk", "Prompt", "Log"


class Names(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """Some of a few names, with commas between them, or `none`."""

    name = "names"

    def __init__(self, known: Sequence[str]) -> None:
        self.known = tuple(known)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
        if names == ("none",):
            return ()
        for name in names:
            if name not in self.known:
                self.fail(f"{name!r} is not one of {', '.join(map(repr, self.known))}, 'none'.", param, ctx)
        return names


class Number(click.IntRange):
    """A whole number within bounds, under a name that people use."""

    name = "number"


NATURAL, POSITIVE = Number(min=0), Number(min=1)
FILE = click.Path(dir_okay=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Told:
    """What click is to know of a setting beside its name and default."""

    section: str
    help: str
    type: Any = None
    short: str = ""
    metavar: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What the server was told. Sizes in MiB where a name says mb, else in tokens; 0 switches off what can be off."""

    model: Annotated[
        Path | None,
        Told(
            MODEL,
            "GGUF file of the model; a small one is built in.",
            click.Path(exists=True, path_type=Path),
            short="-m",
            metavar="FILE",
        ),
    ] = None
    int8_activations: Annotated[
        bool, Told(MODEL, "Round activations to int8 as ds4-server does on a CPU: its greedy text, at half the speed.")
    ] = False
    ctx: Annotated[int, Told(MODEL, "Context in tokens.", Number(min=2), short="-c")] = 32768
    prefill_chunk: Annotated[int, Told(MODEL, "Most tokens of a prompt that are fed at once.", POSITIVE)] = 2048
    sessions: Annotated[int, Told(MODEL, "Conversations kept live.", POSITIVE)] = 1
    mark_memory_mb: Annotated[int, Told(MODEL, "Memory for the points that a session can be rewound to.", NATURAL)] = (
        512
    )

    host: Annotated[str, Told(HTTP, "Address to listen on.", metavar="ADDRESS")] = "127.0.0.1"
    port: Annotated[int, Told(HTTP, "Port to listen on; 0 takes a free one.", Number(0, 65535))] = 8000
    max_queue: Annotated[int, Told(HTTP, "Requests that may wait; one more is answered with 429.", NATURAL)] = 32
    api_key: Annotated[
        str | None, Told(HTTP, "Key that requests must carry, as a bearer token or in x-api-key.", metavar="KEY")
    ] = None
    cors: Annotated[str | None, Told(HTTP, "Origin whose pages may call the server, or *.", metavar="ORIGIN")] = None

    kv_disk_dir: Annotated[
        Path | None, Told(DISK, "Directory of the .kv files; none is kept without it.", DIRECTORY, metavar="DIR")
    ] = None
    kv_disk_space_mb: Annotated[int, Told(DISK, "Budget of the directory.", POSITIVE)] = 4096
    kv_cache_min_tokens: Annotated[int, Told(DISK, "Shorter states are neither saved nor restored.", NATURAL)] = 512
    kv_cache_cold_max_tokens: Annotated[int, Told(DISK, "Longest save made while a new prompt is fed.", NATURAL)] = (
        30000
    )
    kv_cache_continued_interval_tokens: Annotated[
        int, Told(DISK, "A long run is saved every so many tokens.", NATURAL)
    ] = 10000
    kv_cache_boundary_trim_tokens: Annotated[int, Told(DISK, "Tokens taken off the end of a cold save.", NATURAL)] = 32
    kv_cache_boundary_align_tokens: Annotated[int, Told(DISK, "Saves lie on multiples of this.", NATURAL)] = 2048
    kv_cache_boundary_order: Annotated[
        BoundaryOrder, Told(DISK, "ds4-server does trim-then-align.", click.Choice(get_args(BoundaryOrder)))
    ] = "align-then-trim"
    kv_cache_reject_different_quant: Annotated[bool, Told(DISK, "Refuse files of a model with other quant bits.")] = (
        False
    )
    kv_cache_policy: Annotated[
        EvictionPolicy,
        Told(DISK, "What goes first when the budget is used up.", click.Choice(get_args(EvictionPolicy))),
    ] = "ours"
    kv_cache_min_gain_tokens: Annotated[int, Told(DISK, "A save must add so much to what is on disk.", NATURAL)] = 512
    kv_write_limit: Annotated[int, Told(DISK, "Most MiB written in an hour; 0 is no limit.", NATURAL, metavar="MB")] = 0
    kv_abi: Annotated[
        Literal["auto", 0, 2],
        Told(DISK, "Payload to write; auto is what the directory holds.", click.Choice(("auto", 0, 2))),
    ] = "auto"

    tool_memory_max_ids: Annotated[
        int, Told(PROMPT, "Tool calls remembered exactly as they were sampled.", NATURAL)
    ] = 100000
    disable_exact_dsml_tool_replay: Annotated[
        bool, Told(PROMPT, "Write earlier tool calls in canonical form only.")
    ] = False
    tool_preamble: Annotated[
        str,
        Told(
            PROMPT,
            "Wording of the tool preamble, by its month; auto is what the directory holds.",
            click.Choice(["auto", *map(str, Preamble)]),
        ),
    ] = "auto"
    strip_volatile: Annotated[
        tuple[str, ...],
        Told(
            PROMPT,
            "Lines to strip from system texts because they change with every request: any of "
            f"{', '.join(entry.name for entry in VOLATILE)}, joined by commas, or none.",
            Names([entry.name for entry in VOLATILE]),
        ),
    ] = DEFAULT_VOLATILE

    trace: Annotated[
        Path | None, Told(LOG, "Write prompts, plans and outputs to this file, yours alone.", FILE, metavar="FILE")
    ] = None


TOLD: Mapping[str, Told] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Settings, include_extras=True).items()
}


class _Sectioned(click.Command):
    """A command whose help shows its options under the headings of their sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            told = TOLD.get(param.name or "")
            if record := param.get_help_record(ctx):
                sections.setdefault(told.section if told else "Other", []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)


def read_settings(arguments: Sequence[str]) -> Settings | int:
    """The settings, or an exit code if help or version was all that was asked for. Raises click.ClickException."""
    return command().main(list(arguments), "kvserve", standalone_mode=False)  # type: ignore[no-any-return]


def command() -> click.Command:
    """The command whose parameters are the fields of Settings."""
    bare = _Sectioned(
        "kvserve",
        params=[*map(_click_option, fields(Settings)), _config_option()],
        callback=lambda **values: Settings(**values),
        help="Serve a DeepSeek-V4 model, and start every request from the best state there is.",
        epilog="Each option may also stand in the environment (KVSERVE_KV_DISK_DIR) or in the file of --config "
        '(kv-disk-dir = "..."); the command line wins, then the environment, then the file.',
        context_settings={
            "help_option_names": ["-h", "--help"],
            "auto_envvar_prefix": ENVIRONMENT,
            "max_content_width": 110,
        },
    )
    return click.version_option(version("ds4kv"), prog_name="kvserve")(bare)


def _click_option(option: Field[Any]) -> click.Option:
    told, default = TOLD[option.name], option.default
    names = [name for name in (told.short, "--" + option.name.replace("_", "-")) if name]
    return click.Option(
        [*names, option.name],
        default=default,
        help=told.help,
        type=told.type,
        metavar=told.metavar,
        is_flag=default is False,
        show_default=default is not None and default is not False,
    )


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read_file,
        help="TOML file with any of these options.",
    )


def _read_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Put the file's values below the environment and above the defaults; each is judged like one of the command line."""
    if path is None:
        return
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as fault:
        raise click.BadParameter(f"{path} cannot be read as TOML: {fault}", ctx, param) from None
    values = {key.replace("-", "_"): _written(value) for key, value in table.items()}
    for name in values:
        if name not in TOLD:
            raise click.BadParameter(f"{path}: {_unknown(name)}", ctx, param)
    ctx.default_map = values


def _written(value: Any) -> str:
    return ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _unknown(name: str) -> str:
    near = get_close_matches(name, TOLD, n=1)
    hint = f"; did you mean {near[0].replace('_', '-')}?" if near else "; see kvserve --help"
    return f"there is no option {name.replace('_', '-')}{hint}"
