"""`kvtool why` for people and for programs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvformat.identity import Identity
from kvtools.explaining import Knobs, Loss, Why
from kvtools.output import print_fields, progress, safe
from kvtools.picture import picture
from kvtools.requesting import Field, FieldFinder, Request
from kvtools.tracing import Traced

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """The prompt, and where it comes from: a request, a trace, or (neither) a file of its own."""

    prompt: bytes
    request: Request | None = None
    traced: Traced | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """All that `why` says. `server` and `knobs` are what was taken for the server."""

    directory: Path
    server: Identity
    knobs: Knobs
    asked: Asked
    why: Why


def answer_fields(answer: Answer) -> dict[str, Any]:
    """The answer for programs."""
    start, traced, request = answer.why.start, answer.asked.traced, answer.asked.request
    return {
        "directory": str(answer.directory),
        "server": {
            "shape": answer.server.shape.name,
            "quant_bits": answer.server.quant_bits,
            "fingerprint": answer.server.fingerprint or None,
            "ctx": answer.knobs.ctx,
            "min_tokens": answer.knobs.min_tokens,
            "reject_different_quant": answer.knobs.reject_different_quant,
        },
        "prompt_bytes": len(answer.asked.prompt),
        "dialect": request and request.dialect,
        "tool_preamble": request and request.preamble,
        "traced": traced
        and {"number": traced.number, "cached_tokens": traced.cached_tokens, "cache_source": traced.cache_source},
        "start": start
        and {
            "path": str(start.path),
            "tokens": start.tokens,
            "text_bytes": start.entry.header.text_bytes if start.entry.header else 0,
        },
        "examined": answer.why.examined,
        "losses": [_loss_fields(loss, field) for loss, field in _located(answer)],
    }


def _loss_fields(loss: Loss, field: Field | None) -> dict[str, Any]:
    differs = loss.byte is not None
    return {
        "path": str(loss.path),
        "tokens": loss.tokens,
        "reason": loss.reason,
        "lost_tokens": loss.lost,
        "byte": loss.byte,
        "in_prompt": safe(loss.in_prompt) if differs else None,
        "in_file": safe(loss.in_file) if differs else None,
        "same_conversation": loss.same_conversation if differs else None,
        "field": field and field.path,
        "behind_field": field and field.behind,
    }


def _located(answer: Answer, at_most: int | None = None) -> Iterator[tuple[Loss, Field | None]]:
    """Each loss with the client's field in which the prompt and the file part."""
    losses = answer.why.losses[:at_most]
    finder = FieldFinder(answer.asked.request) if answer.asked.request and losses else None
    for loss in progress(losses, "looking for the field", len(losses)):
        yield loss, finder.field_at(loss.byte) if finder and loss.byte is not None else None


def print_answer(answer: Answer) -> None:
    """The start in one line, then the nearest misses, each with its picture."""
    print_fields(_summary(answer))
    for loss, field in _located(answer, SHOWN):
        click.echo()
        click.echo(f"{_name(loss.path)}: {loss.reason}{_where(field)}")
        if loss.byte is not None:
            click.echo("\n".join(picture("prompt", loss.in_prompt, "file", loss.in_file, loss.byte)))
        click.echo(f"  {_cost(loss, len(answer.asked.prompt))}")
    more = len(answer.why.losses) - SHOWN
    if more > 0:
        click.echo(f"\n{more} more came close; --json lists them")


def _summary(answer: Answer) -> Iterator[tuple[str, object]]:
    server, knobs, start, traced = answer.server, answer.knobs, answer.why.start, answer.asked.traced
    quant = " only" if knobs.reject_different_quant else ""
    yield (
        "server",
        f"{server.shape.name}, quant {server.quant_bits}{quant}, ctx {knobs.ctx}, minimum {knobs.min_tokens}",
    )
    if traced:
        yield "traced", f"request {traced.number} started at token {traced.cached_tokens} ({traced.cache_source})"
    yield "prompt", f"{len(answer.asked.prompt)} bytes, compared with {answer.why.examined} files"
    yield "start", f"token {start.tokens} from {_name(start.path)}" if start else "token 0: everything is prefilled"


def _name(path: Path) -> str:
    return safe(os.fsencode(path.name))


def _where(field: Field | None) -> str:
    return f", {'behind' if field.behind else 'in'} {field.path}" if field else ""


def _cost(loss: Loss, prompt_bytes: int) -> str:
    if loss.byte is None:
        return f"{loss.lost} tokens lost"
    if loss.same_conversation:
        return f"{loss.lost} tokens lost: behind this byte it is the same conversation again"
    if loss.byte == prompt_bytes:
        return f"about {loss.lost} tokens more than the start, but a state cannot be cut back to the end of the prompt"
    return f"about {loss.lost} tokens more than the start; from this byte on it is another conversation"
