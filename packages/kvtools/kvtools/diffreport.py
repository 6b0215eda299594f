"""`kvtool diff` for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import click

from kvtools.diffing import Diff, LayerDifference
from kvtools.output import print_fields, print_table, safe
from kvtools.picture import picture

COLUMNS = ("layer", "ratio", "tensor", "rows", "differ", "first row", "max abs", "rms")
RIGHT = frozenset({0, 1, 3, 4, 5, 6, 7})


def diff_fields(a: str, b: str, found: Diff) -> dict[str, Any]:
    """The comparison for programs. What is equal is null or empty; what is not finite is null."""
    text, tokens, logits, tools = found.text, found.tokens, found.logits, found.tools
    return {
        "a": a,
        "b": b,
        "equal": found.equal,
        "fields": [{"field": f.field, "a": f.a, "b": f.b, "counts": f.counts} for f in found.fields],
        "text": text and {"byte": text.byte, "in_a": safe(text.in_a), "in_b": safe(text.in_b)},
        "tokens": tokens
        and {
            "position": tokens.position,
            "in_a": list(tokens.in_a),
            "in_b": list(tokens.in_b),
            "resplit": tokens.resplit,
        },
        "logits": logits
        and {
            "equal": logits.equal,
            "max_abs": _finite(logits.max_abs),
            "kl": _finite(logits.kl),
            "a_top": _top(logits.a_top),
            "b_top": _top(logits.b_top),
        },
        "layers": [_layer_fields(layer) for layer in found.layers],
        "tools": {
            "only_a": [safe(i) for i in tools.only_a],
            "only_b": [safe(i) for i in tools.only_b],
            "other_block": [safe(i) for i in tools.other_block],
        },
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _top(pairs: tuple[tuple[int, float], ...]) -> list[dict[str, Any]]:
    return [{"id": token, "logit": _finite(logit)} for token, logit in pairs]


def _layer_fields(layer: LayerDifference) -> dict[str, Any]:
    tensor = layer.tensor
    return {
        "layer": layer.layer,
        "ratio": layer.ratio,
        "tensor": tensor.name,
        "rows": tensor.rows,
        "differing_rows": tensor.differing_rows,
        "first_row": tensor.first_row,
        "max_abs": _finite(tensor.max_abs),
        "rms": _finite(tensor.rms),
    }


def print_diff(found: Diff) -> None:
    """What differs, part by part, and one sentence."""
    lines = list(_lines(found))
    if lines:
        print_fields(lines)
    if found.text:
        click.echo("\n".join(picture("A", found.text.in_a, "B", found.text.in_b, found.text.byte)))
    differing = [layer for layer in found.layers if layer.tensor.differing_rows]
    if differing:
        click.echo()
        print_table(COLUMNS, map(_row, differing), RIGHT)
    click.echo(_verdict(found))


def _lines(found: Diff) -> Iterator[tuple[str, object]]:
    for field in found.fields:
        yield field.field, f"{field.a} | {field.b}" + ("" if field.counts else " (no part of the state)")
    if found.text:
        yield "text", f"differs at byte {found.text.byte}"
    if found.tokens:
        what = "the same text in other pieces" if found.tokens.resplit else "other ids"
        ids = " | ".join(" ".join(map(str, side)) or "(end)" for side in (found.tokens.in_a, found.tokens.in_b))
        yield "tokens", f"{what} from position {found.tokens.position}: {ids}"
    if found.logits and not found.logits.equal:
        yield "logits", f"max difference {found.logits.max_abs:.6g}, KL {found.logits.kl:.6g}"
        for name, top in (("top 5 of A", found.logits.a_top), ("top 5 of B", found.logits.b_top)):
            yield name, "  ".join(f"{token} ({logit:.4f})" for token, logit in top)
    for name, ids_of in (("only in A", "only_a"), ("only in B", "only_b"), ("other block", "other_block")):
        names = getattr(found.tools, ids_of)
        if names:
            yield f"tools {name}", ", ".join(safe(i) for i in names[:4]) + (", …" if len(names) > 4 else "")


def _row(layer: LayerDifference) -> tuple[object, ...]:
    t = layer.tensor
    place = ("", "") if layer.layer is None else (layer.layer, layer.ratio)
    return (*place, t.name, t.rows, t.differing_rows, t.first_row, f"{t.max_abs:.6g}", f"{t.rms:.6g}")


def _verdict(found: Diff) -> str:
    compared = f"{len(found.layers)} tensors compared"
    if found.equal:
        return f"the same state: text, tokens, logits, tools; {compared}, live rows only"
    differing = sum(bool(layer.tensor.differing_rows) for layer in found.layers)
    return f"different: {compared}, {differing} differ" if found.layers else "different"
