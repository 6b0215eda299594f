"""One step from an equal payload equals ds4's own step, stage by stage.

python -m pytest tests/engine/test_golden_steps.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.helpers import read_payload
from kvengine import Session
from kvengine.attention import Attention
from kvengine.experts import MoE, Router
from kvengine.hyper import Collapse, HyperConnection
from kvengine.indexer import Indexer
from kvengine.linear import Grouped, Linear, Norm

CTX = 4096
AGREES = 1e-4


def steps(golden: Path) -> list[dict[str, Any]]:
    return json.loads((golden / "q2" / "chain" / "steps.json").read_text())


def error_after(session: Session, golden: Path, step: dict[str, Any]) -> float:
    """Largest difference of the logits after one step from a payload of ds4."""
    chain = golden / "q2" / "chain"
    session.restore(read_payload(chain / f"{step['before']}.payload", session.model.config.shape))
    session.feed([step["token"]])
    return float(np.abs(session.logits.numpy() - np.load(chain / f"{step['after']}.logits.npy")).max())


def test_a_step_equals_ds4s(model, golden):
    session = Session(model("q2"), CTX)
    tight = [step for step in steps(golden) if step["max_abs_fast_vs_strict"] < AGREES]
    errors = [error_after(session, golden, step) for step in tight]
    assert len(tight) == 32
    assert sum(error < AGREES for error in errors) >= 30
    assert np.median(errors) < 5e-6


def test_every_miss_is_one_rounding_flip(model, golden, monkeypatch):
    """A step that differs agrees as soon as the activation nearest to a tie of its int8 grid is rounded the other way."""
    session = Session(model("q2"), CTX)
    missed = [step for step in steps(golden) if error_after(session, golden, step) >= AGREES]
    assert len(missed) <= 10  # of 40; 8 of them flip between two builds of ds4 itself
    for step in missed:
        rounding = Flipped(torch.Tensor.round)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "round", lambda x, rounding=rounding: rounding(x))
            error_after(session, golden, step)
            distance, call, place = min(rounding.nearest)
            rounding.flip(call, place)
            error = error_after(session, golden, step)
        assert distance < 1e-4
        assert error < AGREES, step


class Flipped:
    """Tensor.round that notes the value nearest to a tie in each call, and later rounds one of them the other way."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.nearest: list[tuple[float, int, int]] = []
        self.calls = 0
        self.target: tuple[int, int] | None = None

    def flip(self, call: int, place: int) -> None:
        self.calls, self.target = 0, (call, place)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        distance = (x - x.floor() - 0.5).abs().flatten()
        self.nearest.append((float(distance.min()), self.calls, int(distance.argmin())))
        rounded = self.real(x)
        if self.target and self.calls == self.target[0]:
            value = x.flatten()[self.target[1]]
            rounded.view(-1)[self.target[1]] = 2 * value.floor() + 1 - rounded.flatten()[self.target[1]]
        self.calls += 1
        return rounded


@pytest.mark.parametrize("position", [1, 3, 7, 16, 35, 40, 43, 127, 128, 129, 255, 257])
def test_intermediates_equal_ds4s(model, golden, position):
    """All of them; at 129 and 257, where one rounding already parts two builds of ds4 in layer 2, those before it."""
    entry = next(e for e in json.loads((golden / "q2/trace/index.json").read_text()) if e["pos"] == position)
    traced = np.load(golden / "q2" / entry["file"])
    q2 = model("q2")
    session = Session(q2, CTX)
    session.restore(read_payload(golden / "q2" / entry["payload"], q2.config.shape))
    with recording() as seen:
        session.feed([entry["token"]])
    ours = {"logits": session.logits, "out.output_embd": seen.out(q2.collapse), "out.output_norm": seen.into(q2.head)}
    for number, layer in enumerate(q2.layers):
        ours |= {f"L{number}.{name}": value for name, value in stages(seen, layer).items()}
        ours |= rows(seen, session, number, position)
    missing = set(traced.files) - ours.keys()
    assert not missing
    parted = position in (129, 257)
    for name in [name for name in traced.files if not parted or name < "L2"]:
        half = name.endswith(("kv_fp8", "comp_row"))  # traced before the row goes through IEEE half
        np.testing.assert_allclose(
            ours[name].flatten().numpy(),
            traced[name],
            rtol=5e-4 if half else 2e-5,
            atol=2e-5,
            err_msg=f"{name} at {position}",
        )


def stages(seen: Recording, layer: Any) -> dict[str, torch.Tensor]:
    """ds4's names for what passes through one layer."""
    attention, moe = layer.attention, layer.experts
    cur, post, mix = seen.out(layer.attn_wrap, "read")
    ffn_cur, ffn_post, ffn_mix = seen.out(layer.ffn_wrap, "read")
    experts, weights = seen.out(moe.router)
    shared = seen.out(moe.shared.down)
    out = seen.out(moe)
    chosen = [moe.routed(int(expert)) for expert in experts[0]]
    return {
        "in_hc": seen.into(layer.attn_wrap, "read"),
        "attn_cur": cur,
        "attn_hc_post": post,
        "attn_hc_comb": mix,
        "attn_norm": seen.out(layer.attn_norm),
        "qr_norm": seen.out(attention.query_norm),
        "q_pre_rope": seen.out(attention.head_norm),
        "kv_pre_rope": seen.out(attention.key_norm),
        "q": seen.into(attention, "look"),
        "heads_pre_inverse_rope": seen.out(attention, "look"),
        "heads": seen.into(attention.out_groups),
        "attn_low": seen.into(attention.out),
        "attn_out": seen.out(attention.out),
        "after_attn_hc": seen.out(layer.attn_wrap, "write"),
        "ffn_cur": ffn_cur,
        "ffn_hc_post": ffn_post,
        "ffn_hc_comb": ffn_mix,
        "ffn_norm": seen.out(layer.ffn_norm),
        "experts": experts,
        "expert_weights": weights,
        "expert_mid": torch.cat([seen.into(expert.down) for expert in chosen]),
        "ffn_moe": out - shared,
        "ffn_shared": shared,
        "ffn_out": out,
        "out_hc": seen.out(layer.ffn_wrap, "write"),
    }


def rows(seen: Recording, session: Session, number: int, position: int) -> dict[str, torch.Tensor]:
    """What the step wrote into the state, and how the indexer chose."""
    attention, memory = session.model.layers[number].attention, session._memory.layers[number]
    ours = {"kv_fp8": memory.window.last(1)}
    compressors = [("attn_comp", attention.compressor, memory.attn)]
    if attention.indexer is not None:
        compressors.append(("index_comp", attention.indexer.compressor, memory.index))
        count = (position + 1) // 4
        ours["index_allowed"] = torch.ones(count, dtype=torch.int32)
        if count > attention.indexer.top_k:
            q, weights = seen.out(attention.indexer, "queries")
            allowed = torch.zeros(count, dtype=torch.int32).scatter_(0, seen.out(attention.indexer, "select")[0], 1)
            ours |= {"index_q": q, "index_weights": weights, "index_allowed": allowed}
            ours["index_scores"] = seen.out(attention.indexer, "scores")
    for name, compressor, stream in compressors:
        if stream is not None:
            slot, count = stream.lead + position % stream.ratio, (position + 1) // stream.ratio
            ours |= {f"{name}_kv_row": stream.kv[slot], f"{name}_score_row": stream.score[slot]}
            if (position + 1) % stream.ratio == 0:
                ours |= {f"{name}_pooled": seen.into(compressor.norm), f"{name}_row": stream.rows[count - 1]}
    return {f"L{number}.{name}": row for name, row in ours.items()}


class Recording:
    """Copies of the first argument and of the result of each call, by object and method."""

    def __init__(self) -> None:
        self.calls: dict[tuple[int, str], tuple[Any, Any]] = {}

    def into(self, owner: object, method: str = "__call__") -> torch.Tensor:
        return self.calls[id(owner), method][0]

    def out(self, owner: object, method: str = "__call__") -> Any:
        return self.calls[id(owner), method][1]


@contextmanager
def recording() -> Iterator[Recording]:
    seen = Recording()
    methods = [(kind, "__call__") for kind in (Linear, Grouped, Norm, Router, MoE, Collapse)]
    methods += [
        (Indexer, "queries"),
        (Indexer, "scores"),
        (Indexer, "select"),
        (Attention, "look"),
        (HyperConnection, "read"),
        (HyperConnection, "write"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for kind, method in methods:
            patch.setattr(kind, method, _recorded(getattr(kind, method), method, seen))
        yield seen


def _recorded(real: Any, method: str, seen: Recording) -> Any:
    def call(self: object, *arguments: Any) -> Any:
        first = arguments[0].clone()
        result = real(self, *arguments)
        copy = tuple(part.clone() for part in result) if isinstance(result, tuple) else result.clone()
        seen.calls[id(self), method] = (first, copy)
        return result

    return call
