"""The sizes of ds4-mini, and its parameters before training, under the names that ds4's GGUF files give them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kvengine.config import Config

START = 0.1  # of attention's copies against the embeddings

MINI = Config(
    ratios=(0, 4, 128, 4),
    dim=128,
    vocab=4096,
    heads=4,
    head_dim=96,
    rope_dim=32,
    q_rank=64,
    out_rank=64,
    groups=2,
    window=128,
    index_heads=4,
    index_dim=32,
    top_k=512,
    experts=8,
    experts_used=2,
    expert_dim=96,
    expert_scale=1.5,
    hash_layers=1,
    clamp=10.0,
    streams=2,
    sinkhorn_steps=4,
    hc_eps=1e-6,
    norm_eps=1e-6,
    rope_base=10000.0,
    compressed_rope_base=160000.0,
    yarn_factor=16.0,
    yarn_beta_fast=32.0,
    yarn_beta_slow=1.0,
    yarn_context=65536,
)


def shapes(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every parameter of ds4's layout, but for the tables and biases of routing, and the head.

    Head and embedding are one matrix: a token that is copied is then the same direction going in and coming out.
    """
    yield from (("token_embd", (c.vocab, c.dim)), ("output_norm", (c.dim,)))
    yield from _mixer_shapes("output_hc", c, (c.streams,))
    for number, ratio in enumerate(c.ratios):
        at = f"blk.{number}."
        for half in ("attn", "ffn"):
            yield from _mixer_shapes(f"{at}hc_{half}", c, (c.streams, c.streams, c.streams**2))
            yield f"{at}{half}_norm", (c.dim,)
        yield from ((at + name, shape) for name, shape in _layer_shapes(c, ratio))


def _mixer_shapes(at: str, c: Config, parts: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from (
        (at + "_fn", (sum(parts), c.streams * c.dim)),
        (at + "_base", (sum(parts),)),
        (at + "_scale", (len(parts),)),
    )


def _layer_shapes(c: Config, ratio: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from (("attn_q_a", (c.q_rank, c.dim)), ("attn_q_a_norm", (c.q_rank,)))
    yield from (("attn_q_b", (c.heads * c.head_dim, c.q_rank)), ("attn_sinks", (c.heads,)))
    yield from (("attn_kv", (c.head_dim, c.dim)), ("attn_kv_a_norm", (c.head_dim,)))
    yield "attn_output_a", (c.groups * c.out_rank, c.heads * c.head_dim // c.groups)
    yield "attn_output_b", (c.dim, c.groups * c.out_rank)
    if ratio:
        yield from _compressor_shapes("attn_compressor", c, ratio, c.head_dim)
    if ratio == 4:
        yield from _compressor_shapes("indexer_compressor", c, ratio, c.index_dim)
        yield from (
            ("indexer.attn_q_b", (c.index_heads * c.index_dim, c.q_rank)),
            ("indexer.proj", (c.index_heads, c.dim)),
        )
    yield "ffn_gate_inp", (c.experts, c.dim)
    for part, shape in (
        ("gate", (c.expert_dim, c.dim)),
        ("up", (c.expert_dim, c.dim)),
        ("down", (c.dim, c.expert_dim)),
    ):
        yield from ((f"ffn_{part}_exps", (c.experts, *shape)), (f"ffn_{part}_shexp", shape))


def _compressor_shapes(at: str, c: Config, ratio: int, dim: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = dim * (2 if ratio == 4 else 1)
    yield from ((at + "_kv", (width, c.dim)), (at + "_gate", (width, c.dim)))
    yield from ((at + "_ape", (ratio, width)), (at + "_norm", (dim,)))


def initial(c: Config, seed: int) -> dict[str, Tensor]:
    """Random parameters that are trained, and the tables and biases that are not."""
    generator = torch.Generator().manual_seed(seed)
    weights = {f"{name}.weight": _drawn(name, shape, generator) for name, shape in shapes(c)}
    for number, ratio in enumerate(c.ratios):
        at = f"blk.{number}."
        _copy_what_is_seen(weights, at, c, ratio, generator)
        if number < c.hash_layers:
            order = torch.rand(c.vocab, c.experts, generator=generator).argsort(1)
            weights[at + "ffn_gate_tid2eid.weight"] = order[:, : c.experts_used].int()
        else:
            weights[at + "exp_probs_b.bias"] = torch.zeros(c.experts)
    return weights


@torch.no_grad()
def _copy_what_is_seen(weights: dict[str, Tensor], at: str, c: Config, ratio: int, generator: torch.Generator) -> None:
    """Let attention start by adding to a token what it looks at, so that only where to look has to be learned.

    A row holds W·x with orthonormal W; each group hands on some of its numbers, summed over heads, and the output undoes W.
    """
    basis = torch.linalg.qr(torch.randn(c.dim, c.head_dim, generator=generator)).Q.T  # [d, D]
    weights[at + "attn_kv.weight"].copy_(basis)
    if ratio:
        kv = weights[at + "attn_compressor_kv.weight"]
        kv.copy_(basis.repeat(len(kv) // c.head_dim, 1))
    down = weights[at + "attn_output_a.weight"].view(c.groups, c.out_rank, c.heads // c.groups, c.head_dim)
    up = weights[at + "attn_output_b.weight"].view(c.dim, c.groups, c.out_rank)
    share = c.head_dim // c.groups
    for group in range(c.groups):
        numbers = torch.arange(group * share, (group + 1) * share)
        down[group, :share] = torch.eye(c.head_dim)[numbers][:, None]
        up[:, group, :share] = basis[numbers].T * START


def _drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name == "output_norm":
        start = torch.full(shape, 0.15)  # small logits from large embeddings
    elif name.endswith(("norm", "_scale")):
        start = torch.ones(shape)
    elif name.endswith("_base") and shape[0] > 4:
        start = torch.tensor([0.0] * 4 + [2.0, -2.0, -2.0, 2.0])  # each stream starts by keeping to itself
    elif name.endswith(("_base", "sinks", "_ape", "attn_output_b", "ffn_down_exps", "ffn_down_shexp")):
        start = torch.zeros(shape)
    else:
        size = 0.3 if name == "token_embd" else shape[-1] ** -0.5
        start = torch.randn(shape, generator=generator) * size
    return start.requires_grad_()
